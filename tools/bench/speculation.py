"""Answers with drafts against the same answers in single steps."""

import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from models.catalog import Checkpoint, CheckpointError
from models.families import family_of
from models.speculation.source import drafter_of
from storage import answer_pieces, json_text
from tools.bench.client import Client
from tools.bench.figure import Bar, Figure, centre
from tools.bench.in_turns import InTurns, in_turns
from tools.bench.of_models import MODELS_DIR
from tools.bench.prompts import Prompts, request, words
from tools.bench.services import Places, real

_TOPICS = (
    *("the sea", "a lost key", "winter", "old bridges", "a small shop", "trains", "bread"),
    *("the moon", "a garden", "rivers", "a library", "rain", "a clock", "mountains", "salt"),
)
_ASKS = (
    "Write a short poem about {}.",
    "Explain {} to a child in three sentences.",
    "List ten words that have to do with {}, one a line.",
    "Write a Python function that prints a sentence about {}.",
)
_LEAST_GAIN = 0.97
_TOOL = {
    "name": "file_report",
    "description": "Files a report about a place.",
    "input_schema": {
        "type": "object",
        "properties": {
            "place_of_observation": {"enum": ["mountain", "harbour", "village", "forest"]},
            "weather_conditions": {"enum": ["sunny", "cloudy", "rainy", "windy"]},
            "number_of_visitors": {"type": "integer", "minimum": 0, "maximum": 999},
            "needs_attention": {"type": "boolean"},
        },
        "required": [
            "place_of_observation",
            "weather_conditions",
            "number_of_visitors",
            "needs_attention",
        ],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class _Answered:
    """`said` is the content, without the ids of its calls, or the ids of its tokens; `measured` has
    the counts and times that the engine told."""

    said: list[Any]
    tokens: int
    measured: Mapping[str, Any]

    @property
    def rate(self) -> float:
        """Tokens a second of decoding."""
        return self.tokens / self.measured["decode_seconds"]


@dataclass(frozen=True, slots=True)
class _Pair:
    drafted: _Answered
    serial: _Answered

    @property
    def gain(self) -> float:
        return self.drafted.rate / self.serial.rate

    @property
    def is_equal(self) -> bool:
        return self.drafted.said == self.serial.said


class _Engines:
    """Two of one model. They take turns, round by round."""

    def __init__(self, engines: InTurns, prompts: Prompts) -> None:
        self._engines, self._prompts = engines, prompts

    def pair(self, text: str, max_tokens: int, temperature: float = 0) -> _Pair:
        prompt = self._prompts.ids(text, system=None)
        told = self._engines.generate(prompt, max_tokens, temperature)
        drafted, serial = (
            _Answered(each["ids"], len(each["ids"]), each["stats"])
            for each in (told["drafted"], told["serial"])
        )
        return _Pair(drafted, serial)


@contextmanager
def _engines(checkpoint: Checkpoint, drafter: Path | None) -> Iterator[_Engines]:
    with in_turns(checkpoint.path, checkpoint.stop_ids, drafter) as both:
        engines = _Engines(both, Prompts(checkpoint))
        engines.pair("Say hello.", 8)  # both are warm then
        yield engines


def _served(checkpoint: Checkpoint) -> Path | None:
    """What drafts for the model when it is served: what MERERUN_DRAFT_MODEL names, or what is
    shipped for it."""
    asked = os.environ.get("MERERUN_DRAFT_MODEL")
    try:
        return drafter_of(checkpoint, asked, MODELS_DIR)
    except CheckpointError as error:  # such as that it is for another model
        print(f"measured without it: {error}", file=sys.stderr)
        return None


def rewrite(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """A file is written again with a small change."""
    bar = 3.0 if checkpoint.id.startswith("qwen") else 2.2
    with _engines(checkpoint, _served(checkpoint)) as engines:
        pairs = [
            engines.pair(_rewrite(source), 80 if quick else 400)
            for source in (_SOURCES[:1] if quick else _SOURCES)
        ]
    yield _gain(f"{checkpoint.id}: a file again, with a change", pairs, Bar(">=", bar))


def prompts(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Thirty prompts of all kinds, most of which have nothing to draft from."""
    asked = [ask.format(topic) for topic in _TOPICS for ask in _ASKS[:2]]
    asked[1::3] = [_ASKS[2 + n % 2].format(_TOPICS[n]) for n in range(10)]
    with _engines(checkpoint, _served(checkpoint)) as engines:
        pairs = [engines.pair(each, 96) for each in asked[: 3 if quick else 30]]
        gains = [each.gain for each in pairs]
        # One short answer is noisy: even engines that both draft nothing differ.
        low = [place for place, gain in enumerate(gains) if gain < _LEAST_GAIN]
        for place in low:
            again = [engines.pair(asked[place], 96) for _ in range(5)]
            gains[place] = median(each.gain for each in again)
            pairs += again
    yield Figure(
        f"{checkpoint.id}: the prompt with the least gain",
        min(gains),
        "x",
        f"{len(gains)} prompts, greedy, at most 96 tokens each: {centre(gains)}; {len(low)} were "
        "below the bar and were asked five times more, of which the median counts; "
        f"{_equal(pairs)}",
        Bar(">=", _LEAST_GAIN),
    )


def companion(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Chat with what drafts for the model, if anything does, and without."""
    drafter = _served(checkpoint)
    if drafter is None:
        return
    asked = [_ASKS[n % 3].format(topic) for n, topic in enumerate(_TOPICS)][: 3 if quick else 8]
    for temperature in (0.0, 1.0):
        for weights, source in ((drafter, "companion and text"), (None, "text alone")):
            with _engines(checkpoint, weights) as engines:
                pairs = [engines.pair(each, 128, temperature) for each in asked]
            bar = Bar(">=", 1.4) if weights and not temperature else None
            name = f"{checkpoint.id}: chat at temperature {temperature:g}, {source}"
            yield _gain(name, pairs, bar)


def grammar(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Calls that a grammar guides, over HTTP: two services take turns, also in being first."""
    if not family_of(checkpoint).capabilities.tools:
        return
    with (
        real(checkpoint, places.disk) as drafting,
        real(checkpoint, places.disk, "--speculation", "off") as serial,
    ):
        pairs: list[_Pair] = []
        for seed in range(2 if quick else 13):
            asked = {
                **request(f"File a report. {words(12, seed)}", 96),
                "tools": [_TOOL],
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            }
            urls = (drafting.url, serial.url)
            told = {url: _ask(url, asked) for url in (urls if seed % 2 else urls[::-1])}
            pairs.append(_Pair(*(told[url] for url in urls)))
    yield _gain(f"{checkpoint.id}: guided calls", pairs[1:], Bar(">=", 1.15))  # the first warms up


def equality(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Whether drafts change a greedy answer."""
    count = 5 if quick else 200
    with _engines(checkpoint, _served(checkpoint)) as engines:
        pairs = [
            engines.pair(f"{words(6, seed)}. Repeat these words, then go on.", 24)
            for seed in range(count)
        ]
    yield Figure(
        f"{checkpoint.id}: answers that are the same with drafts",
        100 * sum(each.is_equal for each in pairs) / count,
        "%",
        f"{count} prompts, greedy, 24 tokens each; {_acceptance(pairs)}",
        Bar(">=", 100),
    )


# Files of the project itself.
_SOURCES = [inspect.getsource(each) for each in (json_text, answer_pieces.TextPiece)] + [
    inspect.getsource(answer_pieces.joined) + inspect.getsource(answer_pieces.content_of)
]


def _rewrite(source: str) -> str:
    return (
        "Write this file again, all of it, with the one change that every docstring ends with an"
        f" exclamation mark. Answer with the file only.\n\n```python\n{source}```"
    )


def _ask(url: str, asked: Mapping[str, Any]) -> _Answered:
    client = Client(url)  # one that waits for the other's turn would be closed
    message = client.post("/v1/messages", json.dumps(asked).encode())
    latest = client.get("/v1/runs?limit=1")["data"][0]
    telemetry = client.get(f"/v1/runs/{latest['id']}")["telemetry"]
    said = [{k: v for k, v in each.items() if k != "id"} for each in message["content"]]
    return _Answered(said, telemetry["output_tokens"], telemetry)


def _gain(name: str, pairs: list[_Pair], bar: Bar | None) -> Figure:
    serial = [each.serial.rate for each in pairs]
    return Figure(
        name,
        median(each.gain for each in pairs),
        "x",
        f"{len(pairs)} pairs in turns, median ratio of tokens/s while decoding: with "
        f"drafts {centre([each.drafted.rate for each in pairs])}, without {centre(serial)}; "
        f"{_acceptance(pairs)}; {_equal(pairs)}",
        bar,
    )


def _acceptance(pairs: list[_Pair]) -> str:
    def total(name: str) -> int:
        return sum(each.drafted.measured[name] for each in pairs)

    rounds = total("verified_rounds")
    return (
        f"{total('accepted_tokens')} of {total('drafted_tokens')} drafts right in {rounds} rounds "
        f"({1 + total('accepted_tokens') / max(rounds, 1):.2f} tokens a round), "
        f"{sum(each.drafted.tokens for each in pairs)} tokens in all"
    )


def _equal(pairs: list[_Pair]) -> str:
    return f"{sum(each.is_equal for each in pairs)} of {len(pairs)} answers equal"

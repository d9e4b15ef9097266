"""Answers with drafts against the same answers in single steps, in turns, over HTTP."""

import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from models.catalog import Checkpoint, CheckpointError
from models.catalog import inspect as inspect_checkpoint
from models.families import family_of
from models.speculation.source import drafter_of
from storage import answer_pieces, json_text
from tests.support.running import Running
from tools.bench.client import Client
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import words
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
    """`said` is the content, without the ids of its calls."""

    said: list[dict[str, Any]]
    telemetry: Mapping[str, Any]

    @property
    def rate(self) -> float:
        """Tokens a second of decoding."""
        return self.telemetry["output_tokens"] / self.telemetry["decode_seconds"]


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


class _Bench:
    """Two services of one model. They take turns, also in being first."""

    def __init__(self, drafting: Running, serial: Running) -> None:
        self._drafting, self._serial = drafting.url, serial.url
        self._asked = 0

    def pair(self, asked: Mapping[str, Any]) -> _Pair:
        self._asked += 1
        if self._asked % 2:
            return _Pair(_ask(self._drafting, asked), _ask(self._serial, asked))
        serial = _ask(self._serial, asked)
        return _Pair(_ask(self._drafting, asked), serial)


@contextmanager
def _services(checkpoint: Checkpoint, places: Places, *options: str) -> Iterator[_Bench]:
    with (
        real(checkpoint, places.disk, *options) as drafting,
        real(checkpoint, places.disk, "--speculation", "off") as serial,
    ):
        bench = _Bench(drafting, serial)
        bench.pair(_request("Say hello.", 8))  # both are warm then
        yield bench


def rewrite(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """A file is written again with a small change."""
    bar = 3.0 if checkpoint.id.startswith("qwen") else 2.2
    with _services(checkpoint, places) as bench:
        pairs = [
            bench.pair(_request(_rewrite(source), 80 if quick else 400))
            for source in (_SOURCES[:1] if quick else _SOURCES)
        ]
    yield _gain(f"{checkpoint.id}: a file again, with a change", pairs, Bar(">=", bar))


def prompts(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Thirty prompts of all kinds, most of which have nothing to draft from."""
    asked = [ask.format(topic) for topic in _TOPICS for ask in _ASKS[:2]]
    asked[1::3] = [_ASKS[2 + n % 2].format(_TOPICS[n]) for n in range(10)]
    with _services(checkpoint, places) as bench:
        pairs = [bench.pair(_request(each, 96)) for each in asked[: 3 if quick else 30]]
    gains = [each.gain for each in pairs]
    yield Figure(
        f"{checkpoint.id}: the prompt with the least gain",
        min(gains),
        "x",
        f"{len(pairs)} prompts, greedy, at most 96 tokens each: {centre(gains)}; {_equal(pairs)}",
        Bar(">=", 0.97),
    )


def companion(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Chat with the companion that is shipped for the model, or with what MERERUN_DRAFT_MODEL
    names. Models for which there is nothing of the kind are left out."""
    try:
        folder = drafter_of(checkpoint, os.environ.get("MERERUN_DRAFT_MODEL"), checkpoint.path)
    except CheckpointError:
        folder = None
    if folder is None:
        return
    asked = [_ASKS[n % 3].format(topic) for n, topic in enumerate(_TOPICS)]
    requests = [_request(each, 128) for each in asked[: 3 if quick else 15]]
    with _services(checkpoint, places, "--draft-model", str(folder)) as bench:
        pairs = [bench.pair(each) for each in requests]
    yield _gain(
        f"{checkpoint.id}: chat, drafts of the companion and the text", pairs, Bar(">=", 1.4)
    )
    # A companion that is shipped goes with the name of its model.
    nameless = places.disk / "no-companion"
    nameless.symlink_to(checkpoint.path)
    with _services(inspect_checkpoint(nameless), places) as bench:
        pairs = [bench.pair(each) for each in requests]
    yield _gain(f"{checkpoint.id}: the same chat, drafts of the text alone", pairs, None)


def grammar(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Calls that a grammar guides."""
    if not family_of(checkpoint).capabilities.tools:
        return
    with _services(checkpoint, places) as bench:
        pairs = [
            bench.pair(
                {
                    **_request(f"File a report. {words(12, seed)}", 96),
                    "tools": [_TOOL],
                    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                }
            )
            for seed in range(2 if quick else 12)
        ]
    yield _gain(f"{checkpoint.id}: guided calls", pairs, Bar(">=", 1.15))


def equality(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Whether drafts change a greedy answer."""
    count = 5 if quick else 200
    with _services(checkpoint, places) as bench:
        pairs = [
            bench.pair(_request(f"{words(6, seed)}. Repeat these words, then go on.", 24))
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


def _request(text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": "claude-bench",
        "max_tokens": max_tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": text}],
    }


def _ask(url: str, asked: Mapping[str, Any]) -> _Answered:
    client = Client(url)  # one that waits for the other's turn would be closed
    message = client.post("/v1/messages", json.dumps(asked).encode())
    latest = client.get("/v1/runs?limit=1")["data"][0]
    said = [{k: v for k, v in each.items() if k != "id"} for each in message["content"]]
    return _Answered(said, client.get(f"/v1/runs/{latest['id']}")["telemetry"])


def _gain(name: str, pairs: list[_Pair], bar: Bar | None) -> Figure:
    serial = [each.serial.rate for each in pairs]
    return Figure(
        name,
        median(each.gain for each in pairs),
        "x",
        f"{len(pairs)} pairs in turns, greedy, median ratio of tokens/s while decoding: with "
        f"drafts {centre([each.drafted.rate for each in pairs])}, without {centre(serial)}; "
        f"{_acceptance(pairs)}; {_equal(pairs)}",
        bar,
    )


def _acceptance(pairs: list[_Pair]) -> str:
    def total(name: str) -> int:
        return sum(each.drafted.telemetry[name] for each in pairs)

    rounds = total("verified_rounds")
    return (
        f"{total('accepted_tokens')} of {total('drafted_tokens')} drafts right in {rounds} rounds "
        f"({1 + total('accepted_tokens') / max(rounds, 1):.2f} tokens a round), "
        f"{total('output_tokens')} tokens in all"
    )


def _equal(pairs: list[_Pair]) -> str:
    return f"{sum(each.is_equal for each in pairs)} of {len(pairs)} answers equal"

"""Streamed answers of the service against bare generation, in turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from models.catalog import Checkpoint
from tools.bench.baseline import Baseline, Generated, baseline
from tools.bench.client import Client, Stream
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import Prompts, request
from tools.bench.services import Places, real

LONG_PROMPT_TOKENS = 2000
_SHORT_PROMPT_TOKENS = 100
_FEW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Answered:
    """One streamed answer: seconds from the request to its first byte and to its text."""

    generated: Generated
    first_byte: float
    telemetry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt, to the service and to the baseline."""

    service: Answered
    bare: Generated


def engine_speed(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Decode, prefill and time to first text, as ratios."""
    prompts = Prompts(checkpoint)
    without_drafts = real(checkpoint, places.disk, "--speculation", "off")
    with without_drafts as service, baseline(checkpoint.path) as bare:
        bench = _Bench(service.url, bare, prompts)
        tokens, decodes, prefills = (24, 2, 1) if quick else (96, 5, 4)
        bench.pairs(1, _SHORT_PROMPT_TOKENS, _FEW_TOKENS)  # both are warm then
        yield from _decode(bench.pairs(decodes, _SHORT_PROMPT_TOKENS, tokens))
        yield from _prefill(bench.pairs(prefills, LONG_PROMPT_TOKENS, _FEW_TOKENS))


class _Bench:
    def __init__(self, url: str, bare: Baseline, prompts: Prompts) -> None:
        self._url, self._bare, self._prompts = url, bare, prompts
        self._seed = 0

    def pairs(self, count: int, prompt_tokens: int, max_tokens: int) -> list[Pair]:
        """Service and baseline take turns, and take turns in being first. Every prompt is new."""
        pairs: list[Pair] = []
        for index in range(count):
            self._seed += 1
            text = self._prompts.of_length(prompt_tokens, self._seed)
            ids = self._prompts.ids(text)
            if index % 2 == 0:
                service = self._ask(text, max_tokens, len(ids))
                pairs.append(Pair(service, self._bare.generate(ids, max_tokens)))
            else:
                bare = self._bare.generate(ids, max_tokens)
                pairs.append(Pair(self._ask(text, max_tokens, len(ids)), bare))
        return pairs

    def _ask(self, text: str, max_tokens: int, prompt_tokens: int) -> Answered:
        first_byte = 0.0
        came: list[float] = []
        said = ""
        output_tokens = 0
        with Stream(self._url, request(text, max_tokens)) as stream:
            for now, event in stream:
                match event["type"]:
                    case "message_start":
                        first_byte = now - stream.started
                        if event["message"]["usage"]["input_tokens"] != prompt_tokens:
                            raise RuntimeError("the service and the baseline differ in the prompt")
                    case "content_block_delta":
                        came.append(now - stream.started)
                        said += event["delta"]["text"]
                    case "message_delta":
                        output_tokens = event["usage"]["output_tokens"]
                    case "error":
                        raise RuntimeError(f"the service failed: {event['error']['message']}")
                    case _:
                        pass
        telemetry = Client(self._url).get(f"/v1/runs/{stream.run_id}")["telemetry"]
        return Answered(Generated(came[0], came[-1], output_tokens, said), first_byte, telemetry)


def _decode(pairs: list[Pair]) -> Iterator[Figure]:
    service = [pair.service.generated.decode_rate for pair in pairs]
    bare = [pair.bare.decode_rate for pair in pairs]
    equal = sum(pair.service.generated.text == pair.bare.text for pair in pairs)
    yield Figure(
        "decode over HTTP / mlx-lm",
        _ratio(service, bare),
        "",
        f"{len(pairs)} pairs in turns, median ratio; tokens/s from the first to the last: service "
        f"{centre(service)}, mlx-lm {centre(bare)}; {pairs[0].bare.tokens} tokens after "
        f"{_SHORT_PROMPT_TOKENS}; {equal} of {len(pairs)} answers equal",
        Bar(">=", 0.95),
    )


def _prefill(pairs: list[Pair]) -> Iterator[Figure]:
    tokens = pairs[0].service.telemetry["input_tokens"]
    bare = [pair.bare.first for pair in pairs]
    engine = [pair.service.telemetry["first_token_seconds"] for pair in pairs]
    text = [pair.service.generated.first for pair in pairs]
    byte = [1000 * pair.service.first_byte for pair in pairs]
    yield Figure(
        "prefill / mlx-lm",
        _ratio([1 / each for each in engine], [1 / each for each in bare]),
        "",
        f"{len(pairs)} pairs in turns, median ratio; tokens/s of {tokens} to the first one: engine "
        f"{centre([tokens / each for each in engine])}, "
        f"mlx-lm {centre([tokens / each for each in bare])}",
        Bar(">=", 0.95),
    )
    yield Figure(
        "request to first text / bare prefill",
        _ratio(text, bare),
        "",
        f"{tokens} tokens, cold; seconds: client {centre(text)}, mlx-lm {centre(bare)}",
        Bar("<=", 1.1),
    )
    yield Figure(
        "request to first byte",
        median(byte),
        "ms",
        f"message_start, the same requests: {centre(byte)}",
    )


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the pairs' ratios: what drifts on a shared machine falls on both of a pair."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))

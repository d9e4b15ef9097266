"""What a brief request waits for when it comes in the middle of a long prefill, and what the long
one loses by it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from models.catalog import Checkpoint
from storage.run_records import RunRecord
from tests.support.running import Running
from tools.bench.client import Client, Stream
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import Prompts, request
from tools.bench.services import Places, real

# Nearly all that SmolLM2's context of 8,192 holds.
_LONG_TOKENS = 8000
_BRIEF_TOKENS = 32
_FEW_TOKENS = 4
# Rarely: who looks takes a core from the engine, which the run without company does not lose.
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class _Preempted:
    """A long run that made room: seconds on the engine, of one step of its prefill, and from the
    brief request until its first text."""

    engine: float
    chunk: float
    brief: float


def preemption(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """The same long prompts, alone and with a brief request in between, in turns."""
    prompts = Prompts(checkpoint)
    times = 1 if quick else 2
    alone: list[float] = []
    preempted: list[_Preempted] = []
    with real(checkpoint, places.disk) as service:
        for seed in range(times):
            text = prompts.of_length(_LONG_TOKENS, seed)
            brief = prompts.of_length(_BRIEF_TOKENS, seed)
            turns = [
                lambda text=text: alone.append(_undisturbed(service, text)),
                lambda text=text, brief=brief: preempted.append(_disturbed(service, text, brief)),
            ]
            for turn in turns if seed % 2 == 0 else turns[::-1]:
                turn()
    tokens = len(prompts.ids(text))
    chunks = [each.brief / each.chunk for each in preempted]
    yield Figure(
        "brief request in a long prefill: first token / chunk",
        max(chunks),
        "",
        f"the worst of {times}; seconds to its first text "
        f"{centre([each.brief for each in preempted])}, {len(prompts.ids(brief))} tokens; a chunk "
        f"of the {tokens} tokens takes {centre([each.chunk for each in preempted])} s",
        Bar("<=", 3),
    )
    ratios = [one.engine / other for one, other in zip(preempted, alone, strict=True)]
    yield Figure(
        "the preempted run's engine time / alone",
        median(ratios),
        "",
        f"{times} pairs in turns, median ratio; seconds: preempted "
        f"{centre([each.engine for each in preempted])}, alone {centre(alone)}; {tokens} tokens",
        Bar("<=", 1.05),
    )


def _undisturbed(service: Running, text: str) -> float:
    with Stream(service.url, request(text, _FEW_TOKENS)) as stream:
        _read_to_end(stream)
    return _run(service, stream)["telemetry"]["engine_seconds"]


def _disturbed(service: Running, text: str, brief: str) -> _Preempted:
    with Stream(service.url, request(text, _FEW_TOKENS)) as stream:
        record = RunRecord.at(service.data_dir / _run(service, stream)["record"])
        _wait_for_half(record)
        with Stream(service.url, request(brief, _FEW_TOKENS)) as other:
            first = _read_to_end(other) - other.started
        _read_to_end(stream)
    run = _run(service, stream)
    if "queued" not in [move["to_state"] for move in run["history"][1:]]:
        raise RuntimeError("the long request was not preempted")
    return _Preempted(run["telemetry"]["engine_seconds"], _chunk_seconds(record), first)


def _read_to_end(stream: Stream) -> float:
    """When its first text came."""
    first = 0.0
    for now, event in stream:
        if event["type"] == "content_block_delta":
            first = first or now
        elif event["type"] == "error":
            raise RuntimeError(f"the service failed: {event['error']['message']}")
    return first


def _run(service: Running, stream: Stream) -> dict[str, Any]:
    return Client(service.url).get(f"/v1/runs/{stream.run_id}")


def _wait_for_half(record: RunRecord) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        steps = [each for each in record.events() if each["event"] == "prefill"]
        if steps and steps[-1]["done"] * 2 > steps[-1]["total"]:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("the long request was not prefilled in time")
        time.sleep(_POLL_SECONDS)


def _chunk_seconds(record: RunRecord) -> float:
    """The median of the steps between two of which the run did not leave the engine."""
    steps: list[float] = []
    for one, other in pairwise(record.events()):
        if one["event"] == other["event"] == "prefill" and one["done"] < other["done"]:
            steps.append(other["at"] - one["at"])
    return median(steps)

"""How soon the engine is free for the next job when a client hangs up."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from models.catalog import Checkpoint
from storage.run_records import RunRecord
from tests.support.running import Running
from tools.bench.client import Client, Stream
from tools.bench.engine_speed import LONG_PROMPT_TOKENS
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import Prompts, request
from tools.bench.services import Places, real

_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 120
_SHORT_PROMPT_TOKENS = 48
_DECODED_TOKENS = 5  # then it is in the middle of decoding


def cancelling(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Close the connection in the middle of prefill, and of decode, with another job waiting."""
    times = 1 if quick else 5
    prompts = Prompts(checkpoint)
    with real(checkpoint, places.disk) as service:
        for name, length, reached in _MOMENTS:
            texts = [prompts.of_length(length, seed) for seed in range(times)]
            ends = [_hang_up(service, text, reached) for text in texts]
            steps = [longest for _, longest in ends]
            ratios = [seconds / longest for seconds, longest in ends]
            yield Figure(
                f"cancelled in mid-{name}: engine free / longest step",
                max(ratios),
                "",
                f"the worst of {times}, median {centre(ratios)}; from the close of the connection "
                f"until the next job is claimed; steps of {centre(steps)} s",
                Bar("<=", 1.5),
            )


def _hang_up(
    service: Running, text: str, reached: Callable[[RunRecord], bool]
) -> tuple[float, float]:
    """Seconds until the next job had the engine, and the longest step of the cancelled one."""
    with Stream(service.url, request(text, 1000)) as stream:
        record = RunRecord.at(_record_path(service, stream.run_id))
        with Stream(service.url, request("Say yes.", 1)) as following:
            _wait_until(lambda: reached(record))
            closed_at = time.time()
            stream.close()
            if not any(event["type"] == "message_stop" for _, event in following):
                raise RuntimeError("the next job had no answer")
    client = Client(service.url)
    cancelled = client.get(f"/v1/runs/{stream.run_id}")
    if cancelled["state"] != "cancelled":
        raise RuntimeError(f"the job was to be cancelled and is {cancelled['state']}")
    claimed_at = client.get(f"/v1/runs/{following.run_id}")["started_at"]
    return claimed_at - closed_at, cancelled["telemetry"]["longest_step_seconds"]


def _mid_prefill(record: RunRecord) -> bool:
    steps = [each for each in record.events() if each["event"] == "prefill"]
    return bool(steps) and steps[-1]["done"] * 3 > steps[-1]["total"]


def _mid_decode(record: RunRecord) -> bool:
    return sum(each["event"] == "tokens" for each in record.events()) >= _DECODED_TOKENS


# Decoding is cancelled after a short prompt, since a step of prefill would be its longest step.
_MOMENTS = (
    ("prefill", LONG_PROMPT_TOKENS, _mid_prefill),
    ("decode", _SHORT_PROMPT_TOKENS, _mid_decode),
)


def _record_path(service: Running, run_id: str) -> Path:
    return service.data_dir / Client(service.url).get(f"/v1/runs/{run_id}")["record"]


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the job did not get to the point at which it was to be cancelled")
        time.sleep(_POLL_SECONDS)

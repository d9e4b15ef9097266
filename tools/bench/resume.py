"""What it costs that a service is killed in the middle of a batch's answer."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from models.catalog import Checkpoint
from storage.run_records import RunRecord
from tests.support.running import Running
from tools.bench.client import Client, Stream
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import Prompts, request
from tools.bench.services import Places, real

_PROMPT_TOKENS = 100  # after which the model goes on for long
_ANSWER_TOKENS = 200
_KILLED_AFTER_TOKENS = 120
_POLL_SECONDS = 0.02
# Rarely: who looks takes a core from the engine, which a new prompt does not lose.
_POLL_FOR_END_SECONDS = 2.0
_PATIENCE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class _Resumed:
    """A run that went on in another process: tokens, and seconds of its second prefill."""

    known: int  # of the prompt, and generated before the kill
    prefilled: int
    decoded_twice: int
    prefill: float


def resume(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Kill -9, start again, and compare with the prefill of a new prompt of as many tokens."""
    times = 1 if quick else 4
    prompts = Prompts(checkpoint)
    resumed: list[_Resumed] = []
    fresh: list[float] = []
    with real(checkpoint, places.disk) as service:
        for seed in range(times):
            one = _kill_and_resume(service, prompts.of_length(_PROMPT_TOKENS, seed))
            resumed.append(one)
            fresh.append(_prefill(service, prompts.of_length(one.known, times + seed)))
    yield Figure(
        "prefilled after a kill / prompt and answer so far",
        max(each.prefilled / each.known for each in resumed),
        "",
        f"the worst of {times}; tokens: {centre([each.prefilled for each in resumed])} of "
        f"{centre([each.known for each in resumed])}",
        Bar("<=", 1),
    )
    yield Figure(
        "tokens decoded twice after a kill",
        max(each.decoded_twice for each in resumed),
        "",
        f"generated in all but those that the answers have, {_ANSWER_TOKENS} each; as the record "
        "tells",
        Bar("<=", 0),
    )
    yield Figure(
        "engine time that a kill costs / one prefill",
        median(one.prefill / other for one, other in zip(resumed, fresh, strict=True)),
        "",
        f"{times} pairs in turns, median ratio; seconds: second prefill "
        f"{centre([each.prefill for each in resumed])}, that of a new prompt {centre(fresh)}",
        Bar("<=", 1.1),
    )


def _kill_and_resume(service: Running, text: str) -> _Resumed:
    batch_id = _create(service, text)
    run_id = _wait_until(lambda: _running(service))
    path = service.data_dir / Client(service.url).get(f"/v1/runs/{run_id}")["record"]
    _wait_until(lambda: len(_tokens(path)) >= _KILLED_AFTER_TOKENS)
    service.kill()
    before = len(_tokens(path))
    service.start()
    _wait_until(lambda: _has_ended(service, batch_id), _POLL_FOR_END_SECONDS)
    run = Client(service.url).get(f"/v1/runs/{run_id}")
    if run["state"] != "succeeded":
        raise RuntimeError(f"the run was to be resumed and is {run['state']}")
    telemetry = run["telemetry"]  # of the time after the kill
    return _Resumed(
        known=run["input_tokens"] + before,
        prefilled=telemetry["prefilled_tokens"],
        decoded_twice=len(_tokens(path)) - run["output_tokens"],
        prefill=telemetry["prefill_seconds"],
    )


def _prefill(service: Running, text: str) -> float:
    with Stream(service.url, request(text, 1)) as stream:
        if not any(event["type"] == "message_stop" for _, event in stream):
            raise RuntimeError("a request had no answer")
    run = Client(service.url).get(f"/v1/runs/{stream.run_id}")
    return run["telemetry"]["prefill_seconds"]


def _create(service: Running, text: str) -> str:
    params = request(text, _ANSWER_TOKENS)
    body = {"requests": [{"custom_id": "only", "params": params}]}
    return Client(service.url).post("/v1/messages/batches", json.dumps(body).encode())["id"]


def _running(service: Running) -> str | None:
    runs = Client(service.url).get("/v1/runs?state=running")["data"]
    return runs[0]["id"] if runs else None


def _has_ended(service: Running, batch_id: str) -> bool:
    batch = Client(service.url).get(f"/v1/messages/batches/{batch_id}")
    return batch["processing_status"] == "ended"


def _tokens(path: Path) -> list[int]:
    """All that the record has of an answer; none as long as it is being written."""
    events = RunRecord.at(path).events() if path.exists() else []
    return [id for event in events if event["event"] == "tokens" for id in event["ids"]]


def _wait_until(found: Any, poll_seconds: float = _POLL_SECONDS) -> Any:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (value := found()):
        if time.monotonic() > deadline:
            raise RuntimeError("the run did not get so far in time")
        time.sleep(poll_seconds)
    return value

"""An engine that dies, hangs or fails costs the running job, and nothing else."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.lives import (
    Connection,
    assert_answers,
    assert_stops_well,
    ended,
    moves,
    newest_run,
    open_runs,
    recorded_events,
    refused,
    until,
)
from tests.support.messages import events_of, scripted, text_of
from tests.support.running import Running, scripted_service

FAULTS = {
    "die": "the engine process was ended by SIGKILL",
    "hang": "the engine gave no sign for 1 s",
    "fail": "the engine failed: scripted",
}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, engine_stall_seconds=1) as running:
        yield running
        assert open_runs(running) == []
        assert_stops_well(running)


def restarts(service: Running) -> int:
    with service.client() as client:
        return client.get("/v1/runtime").json()["engine"]["restarts"]


def failed(service: Running) -> dict[str, Any]:
    run = ended(service, newest_run(service)["id"])
    assert moves(run) == ["queued", "running", "failed"]
    assert run["error_type"] == "api_error"
    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_ends_with_the_reason(service: Running, fault: str) -> None:
    before = restarts(service)
    with service.client() as client:
        events = events_of(client, scripted(say="abc", then=fault))
    assert text_of(events) == "abc"
    assert events[-1]["type"] == "error"
    assert events[-1]["error"] == {"type": "api_error", "message": FAULTS[fault]}
    assert not {"message_delta", "message_stop"} & {event["type"] for event in events}
    run = failed(service)
    assert run["error_message"] == FAULTS[fault]
    assert run["output_tokens"] == 3
    assert_answers(service)
    assert restarts(service) == before + (fault != "fail")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_whole_answer_is_an_error(service: Running, fault: str) -> None:
    with service.client() as client:
        answer = client.post("/v1/messages", json=scripted(say="abc", then=fault))
    assert refused(answer) == (500, "api_error")
    assert answer.json()["error"]["message"] == FAULTS[fault]
    assert answer.headers["x-should-retry"] == "false"
    assert failed(service)["error_message"] == FAULTS[fault]
    assert_answers(service)


@pytest.mark.parametrize("fault", FAULTS)
def test_queued_jobs_outlive_the_engine(service: Running, fault: str) -> None:
    first = Connection(service.url, {**scripted(say="a", step_ms=100, then=fault), "stream": True})
    with first, Connection(service.url, {**scripted(say="b"), "stream": True}) as second:
        assert first.read_to_end()[-1]["type"] == "error"
        assert second.read_to_end()[-1]["type"] == "message_stop"


def test_an_engine_that_died_while_idle_costs_no_job(service: Running) -> None:
    for _ in range(5):
        os.kill(service.engine_pid(), signal.SIGKILL)
        assert_answers(service)


def test_an_engine_that_hangs_while_idle_costs_no_job(service: Running) -> None:
    os.kill(service.engine_pid(), signal.SIGSTOP)
    assert_answers(service)


def test_an_engine_killed_while_loading_is_started_again(service: Running) -> None:
    process = psutil.Process(service.process.pid)
    before = service.engine_pid()
    os.kill(before, signal.SIGKILL)
    again = until(lambda: [each.pid for each in process.children() if each.pid != before])
    os.kill(again[0], signal.SIGKILL)
    until(lambda: service.engine_pid() not in (None, *again))
    assert_answers(service)


def test_a_job_waits_for_an_engine_that_is_loading_and_can_be_cancelled(service: Running) -> None:
    process = psutil.Process(service.process.pid)
    before = service.engine_pid()
    os.kill(before, signal.SIGKILL)
    loading = until(lambda: [each for each in process.children() if each.pid != before])[0]
    loading.suspend()
    with Connection(service.url, {**scripted(say="a"), "stream": True}) as connection:
        run_id = connection.run_id()
        until(lambda: service.run(run_id)["state"] == "running")
        connection.close()
        run = ended(service, run_id)
        assert moves(run) == ["queued", "running", "cancelled"]
        assert recorded_events(service, run, "prefill") == []
    loading.kill()
    until(lambda: service.engine_pid() not in (None, loading.pid))
    assert_answers(service)

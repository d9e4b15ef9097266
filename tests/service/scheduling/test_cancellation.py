"""A job is cancelled whoever asks, and wherever it is in its life."""

import random
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.scheduling.cancellation import CLIENT_GONE
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
from tests.support.messages import scripted
from tests.support.running import Running, scripted_service

WAITING = scripted(say="a", then="wait")
SLOW_PREFILL = scripted(prefill_steps=100_000, step_ms=2)
SLOW_ANSWER = {**scripted(say="a" * 1000, step_ms=5), "max_tokens": 1000}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(tiny, tmp_path_factory.mktemp("data")) as running:
        yield running
        assert open_runs(running) == []
        assert_stops_well(running)


def started(service: Running, event: str) -> dict[str, Any]:
    """The running run, once its record has such an event."""
    return until(lambda: _with_event(service, event))


def _with_event(service: Running, event: str) -> dict[str, Any] | None:
    running = service.runs("running")
    return running[0] if running and recorded_events(service, running[0], event) else None


def queued(service: Running) -> dict[str, Any]:
    return until(lambda: service.runs("queued"))[0]


def leave(connection: Connection, how: str) -> None:
    connection.close() if how == "close" else connection.reset()


def cancel_in_database(service: Running, run_id: str) -> None:
    with closing(sqlite3.connect(service.data_dir / "mererun.db", timeout=10)) as database:
        database.execute(
            "UPDATE jobs SET cancel_requested_at = ?, cancel_reason = 'by hand' "
            "WHERE id = ? AND state IN ('queued', 'running')",
            (time.time(), run_id),
        )
        database.commit()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streaming", [False, True], ids=["buffered", "streaming"])
@pytest.mark.parametrize(
    ("request_body", "event"),
    [(SLOW_PREFILL, "prefill"), (SLOW_ANSWER, "tokens"), (WAITING, "tokens")],
    ids=["in prefill", "at the first token", "after the last token"],
)
def test_a_client_that_goes_frees_the_engine(
    service: Running, request_body: dict[str, Any], event: str, streaming: bool, how: str
) -> None:
    with Connection(service.url, {**request_body, "stream": streaming}) as connection:
        run = started(service, event)
        leave(connection, how)
    run = ended(service, run["id"])
    assert moves(run) == ["queued", "running", "cancelled"]
    assert run["cancel_reason"] == CLIENT_GONE
    assert run["output_tokens"] == len(recorded_events(service, run, "tokens"))
    assert_answers(service)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streaming", [False, True], ids=["buffered", "streaming"])
def test_a_client_that_goes_leaves_the_queue(service: Running, streaming: bool, how: str) -> None:
    with Connection(service.url, WAITING):
        started(service, "tokens")
        connection = Connection(service.url, {**WAITING, "stream": streaming})
        run = queued(service)
        leave(connection, how)
        run = ended(service, run["id"])
        assert moves(run) == ["queued", "cancelled"]
        assert run["cancel_reason"] == CLIENT_GONE
    until(lambda: not open_runs(service))
    assert_answers(service)


def test_a_client_that_goes_at_once_leaves_no_job_behind(service: Running) -> None:
    for delay_ms in range(40):
        connection = Connection(service.url, {**WAITING, "stream": True})
        time.sleep(delay_ms / 1000)
        leave(connection, random.choice(["close", "reset"]))
    until(lambda: not open_runs(service))
    assert_answers(service)


def test_the_reader_of_a_cancelled_stream_is_told(service: Running) -> None:
    with Connection(service.url, {**WAITING, "stream": True}) as connection:
        connection.read_until(b"content_block_delta")
        with service.client() as client:
            client.post(f"/v1/runs/{newest_run(service)['id']}/cancel").raise_for_status()
        events = connection.read_to_end()
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert "requested through the API" in events[-1]["error"]["message"]
    assert "message_stop" not in [event["type"] for event in events]
    assert ended(service, newest_run(service)["id"])["state"] == "cancelled"


def test_the_reader_of_a_cancelled_whole_answer_is_told(service: Running) -> None:
    with service.client() as client, ThreadPoolExecutor() as pool:
        answer = pool.submit(lambda: client.post("/v1/messages", json=WAITING))
        run = started(service, "tokens")
        client.post(f"/v1/runs/{run['id']}/cancel").raise_for_status()
        assert refused(answer.result()) == (499, "api_error")
    assert ended(service, run["id"])["state"] == "cancelled"


@pytest.mark.parametrize("streaming", [False, True], ids=["buffered", "streaming"])
def test_a_cancelled_queued_run_ends_before_the_answer_to_the_request(
    service: Running, streaming: bool
) -> None:
    with Connection(service.url, WAITING):
        started(service, "tokens")
        with (
            Connection(service.url, {**WAITING, "stream": streaming}) as connection,
            service.client() as client,
        ):
            run = queued(service)
            assert service.run(run["id"])["queue_position"] == 1
            cancelled = client.post(f"/v1/runs/{run['id']}/cancel").raise_for_status().json()
            assert cancelled["state"] == "cancelled"
            connection.read_until(b"the run was cancelled")
    until(lambda: not open_runs(service))
    assert_answers(service)


def test_cancelling_an_ended_run_changes_nothing(service: Running) -> None:
    assert_answers(service)
    run = newest_run(service)
    with service.client() as client:
        assert client.post(f"/v1/runs/{run['id']}/cancel").raise_for_status().json() == run


def test_cancelling_an_unknown_run_says_so(service: Running) -> None:
    with service.client() as client:
        answer = client.post("/v1/runs/run_of_nobody/cancel")
    assert refused(answer) == (404, "not_found_error")


def test_another_process_cancels_through_the_database(service: Running) -> None:
    with Connection(service.url, {**WAITING, "stream": True}) as running:
        first = started(service, "tokens")
        with Connection(service.url, {**WAITING, "stream": True}) as waiting:
            second = queued(service)
            cancel_in_database(service, second["id"])
            assert "by hand" in waiting.read_to_end()[-1]["error"]["message"]
        assert moves(ended(service, second["id"])) == ["queued", "cancelled"]
        cancel_in_database(service, first["id"])
        assert "by hand" in running.read_to_end()[-1]["error"]["message"]
    assert moves(ended(service, first["id"])) == ["queued", "running", "cancelled"]
    assert_answers(service)


def test_every_kind_of_cancellation_at_once_leaves_the_engine_whole(service: Running) -> None:
    chance = random.Random(7)

    def cancel(connection: Connection, run_id: str) -> None:
        time.sleep(chance.random() / 20)
        for _ in range(chance.randint(1, 2)):
            match chance.randint(0, 3):
                case 0:
                    connection.close()
                case 1 if connection.socket.fileno() >= 0:
                    connection.reset()
                case 2:
                    cancel_in_database(service, run_id)
                case _:
                    with service.client() as client:
                        client.post(f"/v1/runs/{run_id}/cancel").raise_for_status()

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            mix = [SLOW_ANSWER, WAITING, SLOW_PREFILL, scripted(say="abc", step_ms=3)]
            connections = [Connection(service.url, {**each, "stream": True}) for each in mix]
            list(pool.map(cancel, connections, [each.run_id() for each in connections]))
            for connection in connections:
                connection.close()
            until(lambda: not open_runs(service))
            assert_answers(service)

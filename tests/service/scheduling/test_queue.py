"""Jobs wait in line: seen, pinged, bounded, and refused when they cannot be kept."""

import selectors
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.lives import (
    Connection,
    assert_answers,
    assert_quiet_log,
    assert_stops_well,
    ended,
    newest_run,
    open_runs,
    refused,
    until,
)
from tests.support.messages import body, check_order, scripted
from tests.support.running import Running, scripted_service

MIB = 1 << 20
WAITING = {**scripted(say="a", then="wait"), "stream": True}
QUEUED_STREAMS = 200


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, ping_seconds=0.2, queue_limit=QUEUED_STREAMS + 1) as running:
        yield running
        assert open_runs(running) == []
        assert_stops_well(running)


def test_jobs_run_in_the_order_of_their_arrival(service: Running) -> None:
    with Connection(service.url, WAITING) as first:
        first.read_until(b"content_block_delta")
        requests = [{**scripted(say=each), "stream": True} for each in "abc"]
        others: list[Connection] = []
        for request in requests:
            others.append(Connection(service.url, request))
            others[-1].run_id()
        places = [service.run(each.run_id())["queue_position"] for each in others]
        assert places == [1, 2, 3]
    started = []
    for each in others:
        check_order(each.read_to_end())
        started.append(service.run(each.run_id())["started_at"])
        each.close()
    assert started == sorted(started)


def test_a_stream_is_pinged_while_its_job_is_queued_and_prefilled(service: Running) -> None:
    with Connection(service.url, WAITING) as first:
        first.read_until(b"content_block_delta")
        request = {**scripted(say="b", prefill_steps=5, step_ms=100), "stream": True}
        with Connection(service.url, request) as second:
            second.read_until(b"event: ping")
            assert service.run(second.run_id())["state"] == "queued"
            pings = second.received.count(b"event: ping")
            first.close()
            events = second.read_to_end()
    check_order(events)
    kinds = [event["type"] for event in events]
    assert kinds[: kinds.index("content_block_start")].count("ping") > pings


def test_two_hundred_queued_streams_are_pinged_in_little_memory(service: Running) -> None:
    process = psutil.Process(service.process.pid)
    assert_answers(service)
    idle = process.memory_info().rss
    streams = [Connection(service.url, WAITING) for _ in range(QUEUED_STREAMS + 1)]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        deadline = time.monotonic() + 30
        while any(stream.received.count(b"event: ping") < 3 for stream in streams):
            assert time.monotonic() < deadline
            for key, _ in selector.select(1):
                key.data.received += key.data.socket.recv(1 << 16)
    assert len(open_runs(service)) == 100  # a page of them
    over_idle = process.memory_info().rss - idle
    print(f"{len(streams)} streams: {over_idle / MIB:.1f} MiB over idle")
    assert over_idle < 64 * MIB
    with service.client() as client:
        answer = client.post("/v1/messages", json=body())
    assert refused(answer) == (529, "overloaded_error")
    assert answer.headers["retry-after"] == "10"
    for stream in streams:
        stream.close()
    until(lambda: not open_runs(service))
    assert_answers(service)


def test_a_burst_fills_the_queue_and_no_more(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path, queue_limit=5) as service:
        streams = [Connection(service.url, WAITING) for _ in range(20)]
        for stream in streams:
            stream.read_until(b"\r\n\r\n")
        statuses = [int(stream.received.split()[1]) for stream in streams]
        assert sorted(statuses) == [200] * 5 + [529] * 15
        for stream in streams:
            stream.close()
        until(lambda: not open_runs(service))
        assert_stops_well(service)


def test_a_database_held_by_other_processes_costs_no_request(service: Running) -> None:
    path = service.data_dir / "mererun.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        ThreadPoolExecutor(8) as pool,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchall()
        answers = [pool.submit(assert_answers, service) for _ in range(16)]
        for _ in range(5):
            writer.execute("BEGIN IMMEDIATE")
            time.sleep(0.1)
            writer.execute("COMMIT")
        for each in answers:
            each.result()
        reader.execute("COMMIT")


def test_a_request_whose_record_cannot_be_begun_is_refused(service: Running) -> None:
    assert_answers(service)
    runs, away = service.data_dir / "runs", service.data_dir / "runs.away"
    newest = newest_run(service)
    runs.rename(away)
    runs.touch()
    try:
        for stream in (False, True):
            with service.client() as client:
                answer = client.post("/v1/messages", json={**body(), "stream": stream})
            assert refused(answer) == (500, "api_error")
            assert "could not be written" in answer.json()["error"]["message"]
        assert newest_run(service) == newest
    finally:
        runs.unlink()
        away.rename(runs)
    assert_answers(service)


def test_a_run_whose_record_cannot_be_ended_fails(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path) as service:
        request = {**scripted(say="abc", step_ms=200), "stream": True}
        with Connection(service.url, request) as connection:
            connection.read_until(b"content_block_delta")
            record = service.data_dir / service.run(connection.run_id())["record"]
            record.rename(record.with_name("away"))
            events = connection.read_to_end()
        assert events[-1]["error"]["type"] == "api_error"
        assert "could not be written" in events[-1]["error"]["message"]
        assert ended(service, connection.run_id())["state"] == "failed"
        assert_answers(service)
        record.with_name("away").rename(record)
        assert service.stop() == 0
        assert_quiet_log(service)


def test_a_fault_of_the_database_is_told_without_its_folder(tiny: Path, tmp_path: Path) -> None:
    with (
        scripted_service(tiny, tmp_path) as service,
        closing(sqlite3.connect(tmp_path / "mererun.db")) as other,
        service.client() as client,
    ):
        other.execute("ALTER TABLE jobs RENAME TO away")
        answers = [client.get("/v1/runs"), client.post("/v1/messages", json=body())]
    for answer in answers:
        assert refused(answer) == (500, "api_error")
        assert "the database mererun.db" in answer.text
        assert str(tmp_path) not in answer.text


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="needs prlimit")
@pytest.mark.parametrize("when", ["before a request", "while a job runs"])
def test_a_full_disk_is_survived(tiny: Path, tmp_path: Path, when: str) -> None:
    """Files may not grow: to a program that is the same as a full disk."""
    with scripted_service(tiny, tmp_path) as service:
        assert_answers(service)
        process = psutil.Process(service.process.pid)
        unlimited = process.rlimit(psutil.RLIMIT_FSIZE)
        if when == "before a request":
            process.rlimit(psutil.RLIMIT_FSIZE, (1, unlimited[1]))
            with service.client() as client:
                answer = client.post("/v1/messages", json=body())
            assert refused(answer) == (500, "api_error")
            assert len(list((tmp_path / "runs").glob("*/*/*/*"))) == 1
        else:
            request = {**scripted(say="abc", step_ms=200), "stream": True}
            with Connection(service.url, request) as connection:
                connection.read_until(b"content_block_delta")
                process.rlimit(psutil.RLIMIT_FSIZE, (1, unlimited[1]))
                assert connection.read_to_end()[-1]["type"] == "error"
        process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
        until(lambda: not open_runs(service))
        assert_answers(service)
        assert_stops_well(service)

"""A run belongs to the process that holds its lease."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.lives import (
    Connection,
    assert_answers,
    assert_stops_well,
    ended,
    moves,
    recorded_events,
    until,
)
from tests.support.messages import check_order, scripted
from tests.support.running import Running, scripted_service

LEASE_SECONDS = 0.5
WAITING = {**scripted(say="a", then="wait"), "stream": True}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(
        tiny, data, lease_seconds=LEASE_SECONDS, housekeeping_seconds=0.1
    ) as running:
        yield running
        assert_stops_well(running)


def lease_of(service: Running, run_id: str) -> float:
    return service.run(run_id)["lease_expires_at"]


def test_a_run_keeps_its_lease(service: Running, tmp_path: Path) -> None:
    go = tmp_path / "go"
    request = {**scripted(hold_file=str(go)), "stream": True}
    with Connection(service.url, request) as connection:
        run_id = connection.run_id()
        first = until(lambda: lease_of(service, run_id))
        until(lambda: lease_of(service, run_id) > first + LEASE_SECONDS)
        go.touch()
        check_order(connection.read_to_end())


def test_a_process_that_stood_still_goes_on_with_its_run(service: Running, tmp_path: Path) -> None:
    go = tmp_path / "go"
    request = {**scripted(say="abc", hold_at=2, hold_file=str(go)), "stream": True}
    with Connection(service.url, request) as connection:
        connection.read_until(b"content_block_delta")
        over = lease_of(service, connection.run_id()) + LEASE_SECONDS
        os.kill(service.process.pid, signal.SIGSTOP)
        until(lambda: time.time() > over)
        os.kill(service.process.pid, signal.SIGCONT)
        until(lambda: lease_of(service, connection.run_id()) > over)
        go.touch()
        check_order(connection.read_to_end())
    assert moves(ended(service, connection.run_id())) == ["queued", "running", "succeeded"]


def test_whoever_lost_its_lease_says_so_and_writes_no_more(service: Running) -> None:
    with Connection(service.url, WAITING) as connection:
        connection.read_until(b"content_block_delta")
        run_id = connection.run_id()
        until(lambda: recorded_events(service, service.run(run_id), "tokens"))
        with closing(sqlite3.connect(service.data_dir / "mererun.db", timeout=10)) as database:
            database.execute(
                "UPDATE jobs SET owner = '1:0.00', engine = 'another' WHERE id = ?", (run_id,)
            )
            database.commit()
        [*_, last] = connection.read_to_end()
    assert last["error"]["message"] == f"the lease of {run_id} was lost"
    assert_answers(service)
    run = service.run(run_id)
    assert (run["state"], run["owner"]) == ("running", "1:0.00")
    assert not (service.data_dir / run["record"] / "response.json").exists()
    assert service.stop() == 0
    service.start()
    assert moves(ended(service, run_id)) == ["queued", "running", "interrupted"]

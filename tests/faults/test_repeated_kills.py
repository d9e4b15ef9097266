"""`kill -9` of the engine and of the service, again and again, under load."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.faults.fragile import LONG
from tests.support.lives import (
    Connection,
    assert_quiet_log,
    assert_stops_well,
    assert_stored_well,
    ended,
    moves,
    until,
)
from tests.support.messages import body, scripted
from tests.support.running import Running, real_service, scripted_service

TIMES = 20 if LONG else 6
# Greedy, since a random model would end a sampled answer soon.
ENDLESS = {**body(), "max_tokens": 4000, "temperature": 0, "stream": True}
SHORT = {**body(), "max_tokens": 3, "temperature": 0}
WAITING = {**scripted(say="abc", then="wait"), "stream": True}


@pytest.fixture
def real(tiny: Path, tmp_path: Path) -> Iterator[Running]:
    with real_service(tiny, tmp_path / "data") as running:
        yield running


@pytest.fixture
def scripted_one(tiny: Path, tmp_path: Path) -> Iterator[Running]:
    with scripted_service(tiny, tmp_path / "data") as running:
        yield running


def answer(service: Running) -> httpx.Response:
    with service.client() as client:
        return client.post("/v1/messages", json=SHORT).raise_for_status()


def restarts(service: Running) -> int:
    with service.client() as client:
        return client.get("/v1/runtime").json()["engine"]["restarts"]


def test_an_engine_killed_again_and_again_costs_one_run_each_time(real: Running) -> None:
    for _ in range(TIMES):
        with Connection(real.url, ENDLESS) as connection:
            connection.read_until(b"content_block_delta")
            os.kill(real.engine_pid(), signal.SIGKILL)
            error = connection.read_to_end()[-1]["error"]
            assert error["message"] == "the engine process was ended by SIGKILL"
            run = ended(real, connection.run_id())
        assert moves(run) == ["queued", "running", "failed"]
        assert run["output_tokens"] > 0
        assert answer(real).json()["usage"]["output_tokens"] == 3
    assert restarts(real) == TIMES
    assert_stops_well(real)


@pytest.mark.parametrize(("engine", "times"), [("real", 4), ("scripted", TIMES - 4)])
def test_a_service_killed_again_and_again_loses_no_run(
    engine: str, times: int, request: pytest.FixtureRequest
) -> None:
    service: Running = request.getfixturevalue("real" if engine == "real" else "scripted_one")
    running: dict[str, Any] = ENDLESS if engine == "real" else WAITING
    for _ in range(times):
        connections = [Connection(service.url, running)]
        connections[0].read_until(b"content_block_delta")
        connections += [Connection(service.url, {**running, "stream": False}) for _ in range(3)]
        until(lambda: len(service.runs("queued")) == 3)
        going_on = [run["id"] for run in service.runs("running", "queued")]
        engines = psutil.Process(service.process.pid).children()
        service.kill()
        assert psutil.wait_procs(engines, 5)[1] == []
        for each in connections:
            each.close()
        service.start()
        states = [service.run(each)["state"] for each in going_on]
        assert states == ["interrupted"] * 4
        assert [len(service.run(each)["history"]) for each in going_on] == [2, 2, 2, 3]
        assert_stored_well(service.data_dir)
        answer(service)
    assert_quiet_log(service)
    assert_stops_well(service)

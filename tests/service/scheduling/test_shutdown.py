"""The service ends in order and in time, whatever its clients and its engine do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from storage import data_dir
from tests.support.lives import (
    Connection,
    assert_quiet_log,
    assert_stored_well,
    refused,
    until,
)
from tests.support.messages import body, check_order, scripted
from tests.support.running import REPOSITORY, Running, scripted_service

WAITING = {**scripted(say="a", then="wait"), "stream": True}
DRAIN_SECONDS = 1.0
# What the service promises beyond the drain. Its own last resort comes before that, so this
# measures whether it is there, not how fast the machine is.
BEYOND_SECONDS = 2.0
BUSY_MACHINE_SECONDS = 3.0


@contextmanager
def stopping(service: Running, drain_seconds: float = DRAIN_SECONDS) -> Iterator[None]:
    """SIGTERM; afterwards everything must be in order, in time."""
    children = psutil.Process(service.process.pid).children(recursive=True)
    service.process.terminate()
    yield
    assert_ended(service, children, drain_seconds)


def assert_ended(service: Running, children: list[psutil.Process], drain_seconds: float) -> None:
    code = service.process.wait(drain_seconds + BEYOND_SECONDS + BUSY_MACHINE_SECONDS)
    assert code == 0, service.log.read_text()
    assert_quiet_log(service)
    assert psutil.wait_procs(children, 5)[1] == []
    log = service.data_dir / "mererun.db-wal"
    assert not log.exists() or log.stat().st_size == 0
    assert not (service.data_dir / "ready.json").exists()
    with data_dir.lock(service.data_dir):
        pass
    assert_stored_well(service.data_dir)


def begun(connection: Connection) -> Connection:
    connection.read_until(b"content_block_delta")
    return connection


def assert_told(connection: Connection) -> None:
    last = connection.read_to_end()[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


@pytest.fixture
def service(tiny: Path, tmp_path: Path) -> Iterator[Running]:
    with scripted_service(tiny, tmp_path / "data", drain_seconds=DRAIN_SECONDS) as running:
        yield running


def test_an_idle_service_ends_at_once(service: Running) -> None:
    with stopping(service, 0):
        pass


def test_interrupt_ends_it_too(service: Running) -> None:
    children = psutil.Process(service.process.pid).children(recursive=True)
    service.process.send_signal(signal.SIGINT)
    assert_ended(service, children, 0)


def test_answers_may_end_during_the_drain(service: Running) -> None:
    request = {**scripted(say="abcdef", step_ms=50), "stream": True}
    with begun(Connection(service.url, request)) as connection, service.client() as client:
        assert client.get("/healthz").status_code == 200
        with stopping(service):
            until(lambda: client.get("/healthz").status_code == 503)
            assert refused(client.post("/v1/messages", json=body())) == (529, "overloaded_error")
            check_order(connection.read_to_end())


def test_readers_are_told_when_the_drain_ends(service: Running) -> None:
    """One running and two queued streams, a buffered request, an idle connection, and a client
    that never reads."""
    with service.client() as idle, begun(Connection(service.url, WAITING)) as running:
        assert idle.get("/healthz").status_code == 200
        queued = [Connection(service.url, WAITING) for _ in range(2)]
        buffered = Connection(service.url, {**WAITING, "stream": False})
        deaf = Connection(service.url, WAITING, receive_buffer=1024)
        until(lambda: len(service.runs("queued")) == 4)
        with stopping(service):
            for each in (running, *queued):
                assert_told(each)
            buffered.read_until(b'"overloaded_error"')
            assert buffered.received.startswith(b"HTTP/1.1 529")
        deaf.close()


def test_a_client_that_never_reads_a_long_answer_holds_nothing_up(service: Running) -> None:
    request = {**scripted(say="a" * 1500), "max_tokens": 2000, "stream": True}
    with Connection(service.url, request, receive_buffer=1024) as deaf:
        deaf.socket.recv(1)
        until(lambda: service.runs("succeeded"))
        with begun(Connection(service.url, WAITING)) as reader, stopping(service):
            assert_told(reader)


def test_a_second_signal_ends_the_drain(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path, drain_seconds=600) as service:
        request = {**scripted(say="a" * 1500), "max_tokens": 2000, "stream": True}
        deaf = Connection(service.url, request, receive_buffer=1024)
        until(lambda: service.runs("succeeded"))
        with begun(Connection(service.url, WAITING)) as reader, stopping(service, 0):
            with service.client() as client:
                until(lambda: client.get("/healthz").status_code == 503)
            service.process.send_signal(signal.SIGINT)
            assert_told(reader)
        deaf.close()


def test_a_hanging_engine_holds_nothing_up(service: Running) -> None:
    with begun(Connection(service.url, WAITING)) as reader:
        os.kill(service.engine_pid(), signal.SIGSTOP)
        with stopping(service):
            assert_told(reader)


def test_many_queued_streams_are_told(service: Running) -> None:
    streams = [Connection(service.url, WAITING) for _ in range(100)]
    for each in streams:
        each.run_id()
    with stopping(service):
        for each in streams:
            assert_told(each)
            each.close()


@pytest.mark.parametrize("chosen", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_loads_ends_it(
    tiny: Path, tmp_path: Path, chosen: signal.Signals
) -> None:
    settings = {"model": str(tiny), "port": 0, "data_dir": str(tmp_path)}
    with (tmp_path / "service.log").open("wb") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scripted_service", json.dumps(settings)],
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
        )
    process = psutil.Process(service.pid)
    # Once it runs its program: until then, the service waits for that.
    [engine] = until(lambda: [x for x in process.children() if x.cmdline() != process.cmdline()])
    engine.suspend()
    service.send_signal(chosen)
    assert service.wait(BEYOND_SECONDS + BUSY_MACHINE_SECONDS) == 0
    assert psutil.wait_procs([engine], 5)[1] == []
    assert "Traceback" not in (tmp_path / "service.log").read_text()

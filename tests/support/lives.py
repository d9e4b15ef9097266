"""What tests of a job's life need: raw connections, waiting for a state, and checks at the end."""

import json
import os
import re
import signal
import socket
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx
import psutil

from storage.database import Database
from storage.jobs import Jobs
from storage.telemetry import telemetry_of
from storage.verification import StoredRun, disagreements
from tests.support.messages import body
from tests.support.running import Running

T = TypeVar("T")

_DEADLINE_SECONDS = 20
# What no log may hold, whatever clients and engines did.
_ALARMS = ("Traceback", "never retrieved", "was destroyed but", "socket.send() raised", "CRITICAL")


def until(found: Callable[[], T], seconds: float = _DEADLINE_SECONDS) -> T:
    """What `found` returns, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
    return value


class Connection:
    """A client that sends one request, and can go in any way a client goes."""

    def __init__(
        self,
        url: str,
        request: dict[str, Any],
        *,
        receive_buffer: int | None = None,
        **headers: str,
    ) -> None:
        address = urlsplit(url)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(_DEADLINE_SECONDS)
        self.socket.connect((address.hostname, address.port))
        content = json.dumps(request).encode()
        head = (
            f"POST /v1/messages HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        )
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(f"{head}{more}\r\n".encode() + content)
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def read_until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS  # pings could come for ever
        while wanted not in self.received:
            assert time.monotonic() < deadline, self.received
            data = self.socket.recv(1 << 16)
            assert data, f"closed after {self.received!r}"
            self.received += data

    def run_id(self) -> str:
        """Of a streamed answer, which begins at once."""
        self.read_until(b"\r\n\r\n")
        found = re.search(rb"mererun-run: (\S+)", self.received)
        assert found, self.received
        return found[1].decode()

    def read_to_end(self) -> list[dict[str, Any]]:
        """All events, once the server has closed the response."""
        while not self.received.endswith(b"\r\n0\r\n\r\n"):
            data = self.socket.recv(1 << 16)
            if not data:
                break
            self.received += data
        return self.events()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in re.findall(rb"\ndata: (.*)\n", self.received)]

    def close(self) -> None:
        """As a program does that ends: FIN."""
        self.socket.close()

    def reset(self) -> None:
        """As a machine does that has lost the connection: RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def end(service: Running, how: str) -> None:
    """End the service or its engine; afterwards there is one again."""
    if how == "engine":
        os.kill(service.engine_pid(), signal.SIGKILL)
        return
    if how == "kill":
        engines = psutil.Process(service.process.pid).children()
        service.kill()
        psutil.wait_procs(engines, 10)
    else:
        assert service.stop() == 0
    service.start()


def open_runs(service: Running) -> list[dict[str, Any]]:
    return service.runs("queued", "running")


def newest_run(service: Running) -> dict[str, Any]:
    return service.runs()[0]


def ended(service: Running, run_id: str) -> dict[str, Any]:
    """The run with its history, once it has ended."""

    def found() -> dict[str, Any] | None:
        run = service.run(run_id)
        return None if run["state"] in ("queued", "running") else run

    run = until(found)
    assert run is not None
    return run


def moves(run: dict[str, Any]) -> list[str]:
    return [each["to_state"] for each in run["history"]]


def recorded_events(service: Running, run: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    file = service.data_dir / run["record"] / "events.jsonl"
    if not file.exists():
        return []
    lines = file.read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [event for event in events if event["event"] == kind]


def assert_answers(service: Running) -> None:
    """The engine is free and whole."""
    with service.client() as client:
        answer = client.post("/v1/messages", json=body())
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"] == [{"type": "text", "text": "ok"}]


def assert_quiet_log(service: Running) -> None:
    log = service.log.read_text()
    assert not [alarm for alarm in _ALARMS if alarm in log], log


def assert_one_at_a_time(data_dir: Path) -> None:
    """No two runs were ever running at the same time."""
    with closing(sqlite3.connect(data_dir / "mererun.db")) as database:
        moves = database.execute(
            "SELECT job_id, from_state, to_state FROM job_history ORDER BY seq"
        )
        running: str | None = None
        for job, before, after in moves:
            if after == "running":
                assert running is None, (running, job)
                running = job
            elif before == "running":
                assert running == job
                running = None


def assert_stored_well(data_dir: Path) -> None:
    """No run is open, and row, history, telemetry and record of each agree."""
    assert anyio.run(_disagreements, data_dir) == []


async def _disagreements(data_dir: Path) -> list[str]:
    found: list[str] = []
    async with Database.open_to_read(data_dir / "mererun.db") as db:
        jobs = Jobs(db)
        for job in await jobs.list(limit=100_000):
            if job.state in ("queued", "running"):
                found.append(f"{job.id} is {job.state}")
            history = await jobs.history(job.id)
            stored = StoredRun(job, history, await telemetry_of(db, job.id))
            found += [f"{job.id}: {each}" for each in disagreements(stored, data_dir)]
    return found


def assert_stops_well(service: Running) -> None:
    """SIGTERM ends it with nothing left over: for the end of each module."""
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert service.stop() == 0, service.log.read_text()
    assert_quiet_log(service)
    assert psutil.wait_procs(children, 5)[1] == []
    assert_stored_well(service.data_dir)


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Status and error type of an error envelope."""
    content = answer.json()
    assert content["type"] == "error"
    assert content["request_id"] == answer.headers["request-id"]
    return answer.status_code, content["error"]["type"]

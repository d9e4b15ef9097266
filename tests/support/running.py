"""Services in processes of their own, for tests that talk to them as clients do."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).parents[2]
_START_SECONDS = 60


class Running:
    """A service that is ready. Its process is the leader of nothing: signals reach it alone."""

    def __init__(self, command: Sequence[str], data_dir: Path) -> None:
        self.data_dir = data_dir
        self.headers: dict[str, str] = {}  # that its clients send
        self.log = data_dir / "service.log"
        self._command = command
        self._ready = data_dir / "ready.json"
        self.start()

    def start(self) -> None:
        """Start it (again) over the same data folder, and wait until it is ready."""
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the service did not start:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.url: str = json.loads(self._ready.read_text())["url"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return self.process.wait(30)

    def client(self, **more: Any) -> httpx.Client:
        headers = {**self.headers, **more.pop("headers", {})}
        # Reading the system's certificates would take longer than most tests.
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False, **more)

    def run(self, run_id: str) -> dict[str, Any]:
        with self.client() as client:
            return client.get(f"/v1/runs/{run_id}").raise_for_status().json()

    def runs(self, *states: str) -> list[dict[str, Any]]:
        with self.client() as client:
            query = [("state", state) for state in states]
            return client.get("/v1/runs", params=query).raise_for_status().json()["data"]

    def engine_pid(self) -> int:
        with self.client() as client:
            return client.get("/v1/runtime").json()["engine"]["pid"]


@contextmanager
def scripted_service(model: Path, data_dir: Path, **settings: Any) -> Iterator[Running]:
    """The service over the scripted engine, on a free port. `settings` are `Settings` fields."""
    values = {
        "model": str(model),
        "port": 0,
        "data_dir": str(data_dir),
        "ready_file": str(data_dir / "ready.json"),
        **settings,
    }
    command = [sys.executable, "-m", "tests.support.scripted_service", json.dumps(values)]
    with _running(command, data_dir) as running:
        yield running


@contextmanager
def real_service(model: Path, data_dir: Path, *options: str) -> Iterator[Running]:
    """`mererun serve` as a user starts it, on a free port. `options` are the command's own."""
    ready = data_dir / "ready.json"
    command = [
        sys.executable, "-m", "service.cli", "serve", "--model", str(model),
        "--data-dir", str(data_dir), "--port", "0", "--ready-file", str(ready), *options,
    ]  # fmt: skip
    with _running(command, data_dir) as running:
        yield running


@contextmanager
def _running(command: Sequence[str], data_dir: Path) -> Iterator[Running]:
    data_dir.mkdir(parents=True, exist_ok=True)
    running = Running(command, data_dir)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.kill(running.process.pid, signal.SIGTERM)
            try:
                running.process.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()

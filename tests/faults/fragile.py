"""Services that die where they are told to, and what must be true afterwards."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from tests.support.lives import assert_answers, assert_quiet_log, assert_stops_well, moves, until
from tests.support.messages import body
from tests.support.running import REPOSITORY, Running
from tools.inspect_runs import main as inspect_runs

# `make faults`; without it, a part that stands for the rest.
LONG = os.environ.get("MERERUN_FAULTS") == "long"
long_only = pytest.mark.skipif(not LONG, reason="it is of the long form: make faults")
_SECONDS = 30


class Fragile(Running):
    """A service that may be started to die at a point, on the scripted engine or the real one."""

    def __init__(
        self,
        model: Path,
        data_dir: Path,
        *,
        point: str | None = None,
        engine: Sequence[str] = ("tests.support.scripted_engine",),
        prefix: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        values = {
            "model": str(model),
            "port": 0,
            "data_dir": str(data_dir),
            "ready_file": str(data_dir.parent / "ready.json"),
            **settings,
        }
        module = "tests.faults.service"
        self._whole = [*prefix, sys.executable, "-m", module, json.dumps(values), *engine]
        self._point = point
        self.engines: list[psutil.Process] = []
        super().__init__(self._whole, data_dir)

    def start(self) -> None:
        # Not in the data folder, whose disk may be full.
        self.log, self._ready = (
            self.data_dir.parent / name for name in ("service.log", "ready.json")
        )
        self._command = self._dying()
        self._point = None
        super().start()
        self.engines = psutil.Process(self.process.pid).children(recursive=True)

    def start_to_die(self, point: str) -> None:
        """While it starts."""
        self._point = point
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._dying(), cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True
            )
        self._point = None
        self.dies()

    def dies(self) -> None:
        """At its point, and its engine with it."""
        assert self.process.wait(_SECONDS) == -signal.SIGKILL, self.log.read_text()
        assert psutil.wait_procs(self.engines, _SECONDS)[1] == []

    def _dying(self) -> list[str]:
        at = [f"MERERUN_FAILPOINT={self._point}"] if self._point else []
        return ["env", *at, *self._whole]

    def moves(self, run_id: str) -> str:
        return " ".join(moves(self.run(run_id)))

    def create_batch(self, items: dict[str, dict[str, Any]]) -> str:
        requests = [{"custom_id": name, "params": params} for name, params in items.items()]
        with self.client() as client:
            created = client.post("/v1/messages/batches", json={"requests": requests})
        return created.raise_for_status().json()["id"]

    def batches(self) -> list[dict[str, Any]]:
        """The newest first."""
        with self.client() as client:
            return client.get("/v1/messages/batches").raise_for_status().json()["data"]

    def batch(self, batch_id: str) -> dict[str, Any]:
        with self.client() as client:
            return client.get(f"/v1/messages/batches/{batch_id}").raise_for_status().json()

    def results(self, batch_id: str) -> dict[str, dict[str, Any]]:
        """Of each request, once the batch has ended."""
        until(lambda: self.batch(batch_id)["processing_status"] == "ended", _SECONDS)
        with self.client() as client:
            lines = client.get(f"/v1/messages/batches/{batch_id}/results").raise_for_status()
        found = [json.loads(line) for line in lines.text.splitlines()]
        results = {each["custom_id"]: each["result"] for each in found}
        assert len(results) == len(found) == sum(self.batch(batch_id)["request_counts"].values())
        return results


@contextmanager
def fragile_service(model: Path, data_dir: Path, **how: Any) -> Iterator[Fragile]:
    """See `Fragile`; whatever it does, it is gone in the end."""
    data_dir.mkdir(parents=True, exist_ok=True)
    service = Fragile(model, data_dir, **how)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()


def post(service: Running, path: str) -> dict[str, Any]:
    with service.client() as client:
        return client.post(path).raise_for_status().json()


def texts(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What each request was answered, or how it ended without an answer."""
    return {
        name: text_of(result["message"]) if result["type"] == "succeeded" else result["type"]
        for name, result in results.items()
    }


def text_of(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"])


def answers(service: Running, request: dict[str, Any] | None = None) -> str:
    with service.client() as client:
        answer = client.post("/v1/messages", json=request or body())
    assert answer.status_code == 200, answer.text
    return text_of(answer.json())


def assert_whole(service: Running, *, strays: int = 0) -> None:
    """The next request is answered, all that is stored agrees, and the end leaves nothing."""
    assert_answers(service)
    assert_sound(service, strays=strays)


def assert_sound(service: Running, *, strays: int = 0) -> None:
    """As `assert_whole`, on an engine that does not know what to answer."""
    until(lambda: not service.runs("queued", "running"), _SECONDS)
    assert_stops_well(service)
    assert_verified(service.data_dir, strays=strays)
    assert_quiet_log(service)
    assert "locked" not in service.log.read_text()


def assert_verified(data_dir: Path, *, strays: int = 0) -> None:
    done = CliRunner().invoke(inspect_runs, ["verify", "--data-dir", str(data_dir)])
    assert done.exit_code == 0, done.output
    said = f"{strays} requests never became a run"
    assert (said in done.output) == (strays > 0), done.output

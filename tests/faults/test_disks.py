"""A disk that is full or read-only costs what needs it, by name, and nothing once it is well."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.disks import disk, full, read_only
from tests.faults.fragile import (
    LONG,
    Fragile,
    assert_whole,
    fragile_service,
    long_only,
    texts,
)
from tests.support.lives import Connection, assert_answers, refused, until
from tests.support.messages import body, scripted
from tests.support.running import REPOSITORY

SLOW = {**scripted(say="a" * 200, step_ms=20), "max_tokens": 300, "stream": True}
ITEMS = {
    "first": {**scripted(say="b" * 100, step_ms=20), "max_tokens": 300},
    "second": scripted(say="two"),
}
RIGHT = {"first": "b" * 100, "second": "two"}
NAMED = "free space or move --data-dir"
# What has a disk of its own: beside the data folder, its records.
WHERE = ["all", "records", "database"] if LONG else ["records"]


@pytest.fixture(params=WHERE)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The folder whose disk gets full."""
    data = tmp_path / "data"
    with ExitStack() as disks:
        disks.enter_context(disk(data, 4 if request.param != "records" else 64))
        if request.param != "all":
            disks.enter_context(disk(data / "runs", 4 if request.param == "records" else 64))
        yield data / "runs" if request.param == "records" else data


@pytest.fixture
def service(where: Path, tiny: Path, tmp_path: Path) -> Iterator[Fragile]:
    with fragile_service(tiny, tmp_path / "data") as running:
        assert_answers(running)
        yield running


def is_refused(answer: httpx.Response) -> bool:
    """Whether it is; and if so, then as a person can understand it."""
    if answer.status_code == 200:
        return False
    assert refused(answer) == (500, "api_error")
    assert NAMED in answer.json()["error"]["message"]
    return True


def ask(service: Fragile, request: dict[str, Any] | None = None) -> httpx.Response:
    with service.client() as client:
        return client.post("/v1/messages", json=request or body())


def test_a_full_disk_costs_the_requests_that_meet_it(service: Fragile, where: Path) -> None:
    with Connection(service.url, SLOW) as stream:
        stream.read_until(b"content_block_delta")
        with full(where):
            last = stream.read_to_end()[-1]
            # Where the record still finds room, the answer is whole; its row has to wait.
            assert last["type"] == "message_stop" or NAMED in last["error"]["message"]
            until(lambda: is_refused(ask(service)))
            assert service.runs()
            with service.client() as client:
                assert client.get("/healthz").status_code == 200
    until(lambda: ask(service).status_code == 200)
    assert_whole(service)


def test_a_full_disk_costs_a_batch_time(service: Fragile, where: Path) -> None:
    batch = service.create_batch(ITEMS)
    until(lambda: service.runs("running"))
    with full(where):
        time.sleep(2)  # in which it would fail, if it did
    assert texts(service.results(batch)) == RIGHT
    assert_whole(service)


@long_only
def test_a_batch_that_does_not_fit_is_refused_as_a_whole(service: Fragile, where: Path) -> None:
    if where.name == "runs":
        pytest.skip("a batch is in the database alone")
    big = {f"item-{place}": scripted(say="x", pad="y" * 100_000) for place in range(60)}
    requests = [{"custom_id": name, "params": params} for name, params in big.items()]
    with service.client() as client:
        assert is_refused(client.post("/v1/messages/batches", json={"requests": requests}))
        assert client.get("/v1/messages/batches").json()["data"] == []
    assert texts(service.results(service.create_batch(ITEMS))) == RIGHT
    assert_whole(service)


@long_only
def test_a_folder_that_becomes_read_only_costs_the_requests_that_meet_it(
    tiny: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with fragile_service(tiny, data) as service:
        assert_answers(service)
        with read_only(data):
            assert is_refused(ask(service))
            batch = service.create_batch(ITEMS)
        assert_answers(service)
        assert texts(service.results(batch)) == RIGHT
        assert_whole(service)


@long_only
def test_a_read_only_folder_is_refused_at_the_start(tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fragile_service(tiny, data) as service:
        assert service.stop() == 0
        with read_only(data):
            said = serve(tiny, data)
        assert said.count("\n") == 1
        assert f"{data} cannot be read and written" in said
        service.start()
        assert_whole(service)


def test_a_second_service_on_a_data_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fragile_service(tiny, data) as service:
        batch = service.create_batch(ITEMS)
        with Connection(service.url, SLOW) as stream:
            stream.read_until(b"content_block_delta")
            said = serve(tiny, data)
            assert said.count("\n") == 1
            assert f"another mererun (pid {service.process.pid}) is using {data}" in said
            assert stream.read_to_end()[-1]["type"] == "message_stop"
        assert texts(service.results(batch)) == RIGHT
        assert_whole(service)


def serve(model: Path, data: Path) -> str:
    """What `mererun serve` says that cannot start."""
    options = ["--model", str(model), "--data-dir", str(data), "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "serve", *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode not in (0, 1), done.stderr
    return done.stderr

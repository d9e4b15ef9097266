"""A service that is killed at any point of a job's life: the next one sees to what it left."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.fragile import (
    LONG,
    Fragile,
    answers,
    assert_sound,
    assert_verified,
    assert_whole,
    fragile_service,
    long_only,
    post,
    text_of,
    texts,
)
from tests.faults.points import NONE, NOTHING, POINTS, Point
from tests.support.lives import Connection, ended, recorded_events, until
from tests.support.messages import body, scripted
from tests.support.running import REPOSITORY

ANSWER = "abcdefghijkl"
ASKED = scripted(say=ANSWER, prefill_steps=3, step_ms=25)
WAITING = {**scripted(say="a", then="wait"), "stream": True}
ITEMS = {"first": ASKED, "second": scripted(say="two"), "third": scripted(say="three")}
RIGHT = {"first": ANSWER, "second": "two", "third": "three"}

Starter = Callable[[str | None], Fragile]


def points(situation: str, kind: str) -> list[Any]:
    return [
        pytest.param(point, id=point.id)
        for point in POINTS
        if point.situation == situation and getattr(point, kind) != NONE and (point.short or LONG)
    ]


@pytest.fixture
def start(tiny: Path, tmp_path: Path) -> Iterator[Starter]:
    """Starts the test's service, to die at a point."""
    services = []

    def started(point: str | None) -> Fragile:
        services.append(fragile_service(tiny, tmp_path / "data", point=point))
        return services[0].__enter__()

    yield started
    services[0].__exit__(None, None, None)


def asked(service: Fragile, request: dict[str, Any] = ASKED) -> Connection:
    return Connection(service.url, {**request, "stream": True})


def begun(service: Fragile, run_id: str, event: str = "tokens") -> dict[str, Any]:
    """The run, once its record has such an event."""
    until(lambda: recorded_events(service, service.run(run_id), event))
    return service.run(run_id)


def items(service: Fragile) -> list[dict[str, Any]]:
    """The runs of the one batch, by their places."""
    return [run for run in service.runs()[::-1] if run["batch_id"]]


@pytest.mark.parametrize("point", points("answer", "interactive"))
def test_killed_on_the_way_to_an_answer(start: Starter, point: Point) -> None:
    service = start(point.name)
    with asked(service):
        service.dies()
    service.start()
    runs = service.runs()
    if point.interactive == NOTHING:
        assert runs == []
        strays = len(list((service.data_dir / "runs").glob("*/*/*/*")))
        assert strays == (point.name != "admitting")
    else:
        strays = 0
        assert [service.moves(run["id"]) for run in runs] == [point.interactive]
    assert_whole(service, strays=strays)


@pytest.mark.parametrize("point", points("answer", "batch_item"))
def test_killed_on_the_way_of_a_batchs_request(start: Starter, point: Point) -> None:
    service = start(point.name)
    with suppress(httpx.TransportError):  # it may be dead before it has said that it is there
        service.create_batch(ITEMS)
    service.dies()
    service.start()
    assert texts(service.results(service.batches()[0]["id"])) == RIGHT
    assert service.moves(items(service)[0]["id"]) == point.batch_item
    assert_whole(service)


@pytest.mark.parametrize(
    "name", ["prefill:3", "tokens:9", "flushed", "put back"] if LONG else ["tokens:9"]
)
def test_a_real_engine_goes_on_to_the_same_answer(tiny: Path, tmp_path: Path, name: str) -> None:
    """Greedy, since a random model would end a sampled answer soon. Four chunks of prompt."""
    long = {**body("hi" * 450), "max_tokens": 600, "temperature": 0}
    engine = ["models.engine.worker"]
    with fragile_service(tiny, tmp_path / "data", point=name, engine=engine) as service:
        with suppress(httpx.TransportError):
            service.create_batch({"first": long})
        with ExitStack() as readers:
            if name == "put back":
                until(lambda: service.runs("running"))
                readers.enter_context(asked(service))
            service.dies()
        service.start()
        result = service.results(service.batches()[0]["id"])["first"]
        assert result["message"]["usage"]["output_tokens"] == 600
        assert text_of(result["message"]) == answers(service, long)
        assert_sound(service)


@long_only
@pytest.mark.parametrize("name", ["claimed", "flushing"])
def test_cancelled_after_its_service_was_killed(start: Starter, name: str) -> None:
    service = start(name)
    with suppress(httpx.TransportError):
        service.create_batch(ITEMS)
    service.dies()
    database = sqlite3.connect(service.data_dir / "mererun.db", isolation_level=None)
    with closing(database):
        database.execute("UPDATE jobs SET cancel_requested_at = 1, cancel_reason = 'by hand'")
    service.start()
    results = service.results(service.batches()[0]["id"])
    assert texts(results) == dict.fromkeys(RIGHT, "canceled")
    assert service.moves(items(service)[0]["id"]) == "queued running cancelled"
    assert_whole(service)


@pytest.mark.parametrize("point", points("batch created", "batch_item"))
def test_killed_while_a_batch_is_created(start: Starter, point: Point) -> None:
    service = start(point.name)
    with pytest.raises(httpx.TransportError):
        service.create_batch(ITEMS)
    service.dies()
    service.start()
    if point.batch_item == NOTHING:
        assert (service.batches(), service.runs()) == ([], [])
    else:
        assert texts(service.results(service.batches()[0]["id"])) == RIGHT
        assert {service.moves(run["id"]) for run in items(service)} == {point.batch_item}
    assert_whole(service)


@pytest.mark.parametrize("point", points("preempted", "interactive"))
def test_killed_while_an_answer_makes_room(start: Starter, point: Point) -> None:
    service = start(point.name)
    long = scripted(say="x", pad="a" * 2500, prefill_steps=1000, step_ms=20)
    with asked(service, long) as connection:
        long_id = connection.run_id()
        begun(service, long_id, "prefill")
        with asked(service) as brief:
            service.dies()
            brief.close()
    service.start()
    assert service.moves(long_id) == point.interactive
    assert service.moves(service.runs()[0]["id"]) == "queued interrupted"
    assert_whole(service)


@pytest.mark.parametrize("point", points("preempted", "batch_item"))
def test_killed_while_a_batchs_request_makes_room(start: Starter, point: Point) -> None:
    service = start(point.name)
    batch = service.create_batch(ITEMS)
    begun(service, items(service)[0]["id"])
    with asked(service):
        service.dies()
    service.start()
    assert texts(service.results(batch)) == RIGHT
    assert service.moves(items(service)[0]["id"]) == point.batch_item
    assert service.moves(service.runs()[0]["id"]) == "queued interrupted"
    assert_whole(service)


@pytest.mark.parametrize("point", points("cancelled", "interactive"))
def test_killed_while_a_waiting_request_is_cancelled(start: Starter, point: Point) -> None:
    service = start(point.name)
    with asked(service, WAITING) as running:
        running.read_until(b"content_block_delta")
        with asked(service) as waiting:
            running_id, waiting_id = running.run_id(), waiting.run_id()
            with pytest.raises(httpx.TransportError):
                post(service, f"/v1/runs/{waiting_id}/cancel")
            service.dies()
    service.start()
    assert service.moves(waiting_id) == point.interactive
    assert service.moves(running_id) == "queued running interrupted"
    assert_whole(service)


@pytest.mark.parametrize("point", points("cancelled", "batch_item"))
def test_killed_while_a_batchs_waiting_request_is_cancelled(start: Starter, point: Point) -> None:
    service = start(point.name)
    batch = service.create_batch(ITEMS)
    first = items(service)[0]["id"]
    begun(service, first)
    with asked(service, WAITING) as connection:
        connection.read_until(b"content_block_delta")
        with pytest.raises(httpx.TransportError):
            post(service, f"/v1/runs/{first}/cancel")
        service.dies()
    service.start()
    assert texts(service.results(batch)) == {**RIGHT, "first": "canceled"}
    assert service.moves(first) == point.batch_item
    assert_whole(service)


@pytest.mark.parametrize("point", points("batch cancelled", "batch_item"))
def test_killed_while_a_batch_is_cancelled(start: Starter, point: Point) -> None:
    service = start(point.name)
    batch = service.create_batch(ITEMS)
    first = items(service)[0]["id"]
    begun(service, first)
    with pytest.raises(httpx.TransportError):
        post(service, f"/v1/messages/batches/{batch}/cancel")
    service.dies()
    service.start()
    is_cancelled = point.batch_item.endswith("cancelled")
    assert texts(service.results(batch)) == (
        dict.fromkeys(RIGHT, "canceled") if is_cancelled else RIGHT
    )
    assert service.moves(first) == point.batch_item
    assert_whole(service)


@pytest.mark.parametrize("point", points("resumed", "interactive"))
def test_killed_while_a_cancelled_run_is_resumed(start: Starter, point: Point) -> None:
    service = start(point.name)
    with asked(service) as connection:
        run_id = connection.run_id()
        begun(service, run_id)
        post(service, f"/v1/runs/{run_id}/cancel")
        assert ended(service, run_id)["state"] == "cancelled"
    with suppress(httpx.TransportError):  # it may die before it has answered
        post(service, f"/v1/runs/{run_id}/resume")
    service.dies()
    service.start()
    run = ended(service, run_id)
    assert service.moves(run_id) == point.interactive
    events = recorded_events(service, run, "tokens")
    assert "".join(event["text"] for event in events) == ANSWER
    assert_whole(service)


@pytest.mark.parametrize("point", points("recovered", "interactive"))
def test_killed_while_it_sees_to_what_was_left(start: Starter, point: Point) -> None:
    service = start("closed")
    with asked(service):
        service.dies()
    service.start_to_die(point.name)
    service.start_to_die(point.name)
    service.start()
    assert [service.moves(run["id"]) for run in service.runs()] == [point.interactive]
    assert_whole(service)


@pytest.mark.parametrize("point", points("recovered", "batch_item"))
def test_killed_while_it_sees_to_a_batchs_request(start: Starter, point: Point) -> None:
    service = start("closed")
    with suppress(httpx.TransportError):
        service.create_batch(ITEMS)
    service.dies()
    service.start_to_die(point.name)
    service.start()
    assert texts(service.results(service.batches()[0]["id"])) == RIGHT
    assert service.moves(items(service)[0]["id"]) == point.batch_item
    assert_whole(service)


@pytest.mark.parametrize("point", points("batch deleted", "batch_item"))
def test_killed_while_a_batch_is_deleted(start: Starter, point: Point) -> None:
    service = start(point.name)
    batch = service.create_batch(ITEMS)
    service.results(batch)
    with service.client() as client, pytest.raises(httpx.TransportError):
        client.delete(f"/v1/messages/batches/{batch}")
    service.dies()
    service.start()
    assert texts(service.results(batch)) == RIGHT
    assert {service.moves(run["id"]) for run in items(service)} == {point.batch_item}
    assert_whole(service)


def prune(service: Fragile, point: str | None) -> int:
    at = {"MERERUN_FAILPOINT": point} if point else {}
    arguments = ["prune", "--keep-gib", "0", "--data-dir", str(service.data_dir)]
    return subprocess.run(
        [sys.executable, "-m", "tools.inspect_runs", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **at},
        capture_output=True,
    ).returncode


@pytest.mark.parametrize("point", points("pruned", "batch_item"))
def test_killed_while_runs_are_pruned(start: Starter, point: Point) -> None:
    service = start(None)
    batch = service.create_batch(ITEMS)
    service.results(batch)
    with asked(service) as connection:
        connection.read_to_end()
    before = {run["id"]: service.moves(run["id"]) for run in service.runs()}
    assert prune(service, point.name) == -signal.SIGKILL
    if point.batch_item == NOTHING:  # the oldest goes first, and a batch as a whole
        before = {run["id"]: "queued running succeeded" for run in service.runs()[:1]}
    assert {run["id"]: service.moves(run["id"]) for run in service.runs()} == before
    assert_verified(service.data_dir)
    assert prune(service, None) == 0
    assert service.runs() == []
    assert list((service.data_dir / "runs").glob("*/*/*/*")) == []
    assert_whole(service)

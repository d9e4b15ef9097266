"""What is first told of a prompt stands, and comes before all else, however the run goes on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.batches import create_batch, results, runs_of
from tests.support.cached import cached, marked, split, total
from tests.support.lives import (
    Connection,
    assert_answers,
    assert_stops_well,
    end,
    ended,
    moves,
    newest_run,
    open_runs,
    recorded_events,
    until,
)
from tests.support.messages import check_order, scripted, text_of
from tests.support.running import Running, scripted_service

PING_SECONDS = 0.05
WAITING = {**scripted(say="a", then="wait"), "stream": True}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, ping_seconds=PING_SECONDS, drain_seconds=0.1) as running:
        yield running
        assert open_runs(running) == []
        assert_stops_well(running)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """While it is not there, runs stand still."""
    return tmp_path / "go"


@pytest.fixture
def text() -> str:
    """That no other test has begun a prompt with."""
    return uuid4().hex


def usage_of(service: Running, request: dict[str, Any]) -> dict[str, Any]:
    with service.client() as client:
        return client.post("/v1/messages", json=request).raise_for_status().json()["usage"]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def recorded_usage(service: Running, run: dict[str, Any]) -> dict[str, Any]:
    response = (service.data_dir / run["record"] / "response.json").read_text()
    return json.loads(response)["message"]["usage"]


def told(connection: Connection) -> tuple[int, int, int]:
    """How a stream whose text has begun was told of its prompt."""
    connection.read_until(b"content_block_delta")
    [start] = [each for each in connection.events() if each["type"] == "message_start"]
    return split(start["message"]["usage"])


def test_a_stream_that_waits_is_pinged_until_its_prompt_is_known(
    service: Running, text: str
) -> None:
    with Connection(service.url, WAITING) as other:
        other.read_until(b"content_block_delta")
        request = {**cached(marked(text)), "stream": True}
        with Connection(service.url, request) as waiting:
            assert waiting.run_id()  # its headers come at once
            waiting.read_until(b"event: ping")
            assert b"message_start" not in waiting.received
            other.close()
            events = waiting.read_to_end()
    check_order(events)
    assert split(events[kinds(events).index("message_start")]["message"]["usage"])[1] > len(text)


def test_a_stream_that_ends_before_its_prompt_is_known_has_an_error_alone(
    service: Running, text: str
) -> None:
    with Connection(service.url, WAITING) as other, service.client() as client:
        other.read_until(b"content_block_delta")
        with Connection(service.url, {**cached(marked(text)), "stream": True}) as waiting:
            run_id = waiting.run_id()
            client.post(f"/v1/runs/{run_id}/cancel").raise_for_status()
            events = waiting.read_to_end()
    assert set(kinds(events[:-1])) <= {"ping"}
    assert events[-1]["type"] == "error"
    run = ended(service, run_id)
    assert moves(run) == ["queued", "cancelled"]
    usage = recorded_usage(service, run)
    assert (split(usage), total(usage)) == ((0, 0, 0), run["input_tokens"])


def test_a_cancelled_stream_leaves_what_it_was_told(service: Running, text: str) -> None:
    request = {**cached(marked(text), say="a", then="wait"), "stream": True}
    with Connection(service.url, request) as connection:
        first = told(connection)
    run = ended(service, newest_run(service)["id"])
    assert run["state"] == "cancelled"
    usage = recorded_usage(service, run)
    assert (split(usage), total(usage)) == (first, run["input_tokens"])
    assert split(usage_of(service, cached(marked(text)))) == (first[1], 0, 0)


def test_a_run_that_made_room_says_what_it_said_first(
    service: Running, go: Path, text: str
) -> None:
    long = cached(marked(text), hold_file=str(go), prefill_steps=10, say="long", pad="x" * 3000)
    with Connection(service.url, {**long, "stream": True}) as connection:
        connection.read_until(b"message_start")
        run_id = connection.run_id()
        until(lambda: recorded_events(service, service.run(run_id), "prefill"))
        assert_answers(service)
        go.touch()
        events = [each for each in connection.read_to_end() if each["type"] != "ping"]
    check_order(events)
    assert text_of(events) == "long"
    first = split(events[0]["message"]["usage"])
    assert first[0] == 0
    assert events[-2]["usage"]["cache_creation_input_tokens"] == first[1] > len(text)
    run = ended(service, run_id)
    assert moves(run).count("running") > 1
    assert split(recorded_usage(service, run)) == first
    assert len(recorded_events(service, run, "cache")) == 1


@pytest.mark.parametrize("how", ["kill", "stop", "engine"])
def test_a_run_that_goes_on_later_says_what_it_said_first(
    service: Running, go: Path, text: str, how: str
) -> None:
    kept = split(usage_of(service, cached(marked(text))))[1]
    request = cached(marked(text), marked("b" * 20, "5m"), say="ab", hold_at=1, hold_file=str(go))
    batch = create_batch(service, request)
    [run] = runs_of(service, batch)
    until(lambda: recorded_events(service, run, "tokens"))
    end(service, how)  # and with it what was kept
    go.touch()
    [result] = results(service, batch)
    read, created, _ = split(result["message"]["usage"])
    assert (read, created >= 20) == (kept, True)
    run = ended(service, run["id"])
    assert moves(run).count("running") == 2
    assert total(result["message"]["usage"]) == run["input_tokens"]
    assert run["telemetry"]["cache_read_tokens"] == kept
    assert len(recorded_events(service, run, "cache")) == 1


def test_a_run_that_is_cancelled_by_nobody_who_knew_it_says_what_it_said_first(
    service: Running, go: Path, text: str
) -> None:
    """Its service was killed, and the next one closes its record."""
    request = cached(marked(text), say="ab", hold_at=1, hold_file=str(go))
    with Connection(service.url, {**request, "stream": True}) as connection:
        run_id = connection.run_id()
        until(lambda: recorded_events(service, service.run(run_id), "tokens"))
        first = told(connection)
        end(service, "kill")
    run = ended(service, run_id)
    assert run["state"] == "interrupted"
    with service.client() as client:
        go.unlink(missing_ok=True)
        client.post(f"/v1/runs/{run_id}/resume").raise_for_status()
        until(lambda: len(recorded_events(service, run, "claimed")) == 2)
        client.post(f"/v1/runs/{run_id}/cancel").raise_for_status()
    run = ended(service, run_id)
    assert run["state"] == "cancelled"
    assert split(recorded_usage(service, run)) == first

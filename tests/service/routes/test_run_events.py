"""`GET /v1/runs/{id}/events`: what is recorded of a run, from any event on, and live."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.lives import Connection, assert_answers, assert_stops_well, ended, refused, until
from tests.support.messages import scripted
from tests.support.running import Running, scripted_service

SLOW = {**scripted(say="slowly", step_ms=50), "stream": True}
WAITING = {**scripted(say="and wait", then="wait"), "stream": True}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(tiny, tmp_path_factory.mktemp("data"), ping_seconds=0.1) as running:
        yield running
        assert_stops_well(running)


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def sse(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Each event's fields; pings too."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            yield fields
            fields = {}


def followed(client: httpx.Client, path: str, **more: Any) -> list[dict[str, str]]:
    with client.stream("GET", path, **more) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [each for each in sse(response.iter_lines()) if each["event"] != "ping"]


def recorded(service: Running, run_id: str) -> list[dict[str, Any]]:
    (file,) = service.data_dir.glob(f"runs/*/*/*/{run_id}/events.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def answered(client: httpx.Client, **script: Any) -> str:
    return client.post("/v1/messages", json=scripted(**script)).headers["mererun-run"]


def test_an_ended_run_is_told_from_any_event_on(service: Running, client: httpx.Client) -> None:
    run = answered(client, say="hello", prefill_steps=3)
    events = recorded(service, run)
    for after in range(len(events) + 2):
        for asked in (
            {"headers": {"Last-Event-ID": str(after)}},
            {"params": {"after": str(after)}},
            {"headers": {"Last-Event-ID": str(after)}, "params": {"after": "1"}},
        ):
            *told, last = followed(client, f"/v1/runs/{run}/events", **asked)
            assert [json.loads(each["data"]) for each in told] == events[after:]
            assert [each["id"] for each in told] == [str(each["seq"]) for each in events[after:]]
            assert [each["event"] for each in told] == [each["event"] for each in events[after:]]
            assert last["event"] == "ended"
            assert "id" not in last
    assert json.loads(last["data"]) == {
        "type": "ended",
        "state": "succeeded",
        "stop_reason": "end_turn",
        "error_type": None,
        "error_message": None,
        "output_tokens": 6,
    }


def test_a_run_that_goes_on_is_told_as_it_does_and_can_be_joined_again(
    service: Running, client: httpx.Client
) -> None:
    with Connection(service.url, SLOW) as asking:
        run = asking.run_id()
        told: list[dict[str, str]] = []
        with client.stream("GET", f"/v1/runs/{run}/events") as response:
            for event in sse(response.iter_lines()):
                if event["event"] != "ping":
                    told.append(event)
                if event["event"] == "tokens":
                    break
        assert client.get(f"/v1/runs/{run}").json()["state"] == "running"
        last_id = {"Last-Event-ID": told[-1]["id"]}
        told += followed(client, f"/v1/runs/{run}/events", headers=last_id)
        asking.read_to_end()
    assert [json.loads(each["data"]) for each in told[:-1]] == recorded(service, run)
    assert json.loads(told[-1]["data"])["state"] == "succeeded"


def test_a_queued_run_is_waited_for_with_pings(service: Running, client: httpx.Client) -> None:
    with Connection(service.url, WAITING) as first:
        first.read_until(b"content_block_delta")
        second = Connection(service.url, SLOW)
        run = second.run_id()
        with client.stream("GET", f"/v1/runs/{run}/events") as response:
            told = sse(response.iter_lines())
            while next(told)["event"] != "ping":
                pass
            first.close()
            rest = [each["event"] for each in told]
    with second:
        second.read_to_end()
    assert rest[-1] == "ended"
    assert "tokens" in rest


def test_a_cancelled_run_is_told_why_it_ended(service: Running, client: httpx.Client) -> None:
    with Connection(service.url, WAITING) as asking:
        run = asking.run_id()
        until(lambda: client.get(f"/v1/runs/{run}").json()["state"] == "running")
        with client.stream("GET", f"/v1/runs/{run}/events") as response:
            client.post(f"/v1/runs/{run}/cancel")
            last = list(sse(response.iter_lines()))[-1]
        asking.read_to_end()
    assert json.loads(last["data"])["state"] == "cancelled"
    assert "requested through the API" in json.loads(last["data"])["error_message"]


def test_whoever_asks_for_the_head_only_does_not_wait_for_the_end(
    service: Running, client: httpx.Client
) -> None:
    with Connection(service.url, WAITING) as asking:
        path = f"/v1/runs/{asking.run_id()}"
        answer = client.head(f"{path}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert client.get(path).json()["state"] in ("queued", "running")


def test_readers_that_leave_cost_nothing(service: Running, client: httpx.Client) -> None:
    with Connection(service.url, WAITING) as asking:
        run = asking.run_id()
        for _ in range(5):
            with client.stream("GET", f"/v1/runs/{run}/events") as response:
                next(response.iter_lines())
        assert client.get(f"/v1/runs/{run}").json()["state"] == "running"
    ended(service, run)
    assert_answers(service)


def test_an_unknown_run_and_a_bad_number_are_refused(client: httpx.Client) -> None:
    assert refused(client.get("/v1/runs/run_none/events")) == (404, "not_found_error")
    run = answered(client)
    for number in ("-1", "x", "1.5", "٣", "0x1"):
        answer = client.get(f"/v1/runs/{run}/events", params={"after": number})
        assert refused(answer) == (400, "invalid_request_error")
    too_large = followed(client, f"/v1/runs/{run}/events?after={'9' * 30}")
    assert [each["event"] for each in too_large] == ["ended"]


def test_without_content_counts_are_told(tiny: Path, tmp_path: Path) -> None:
    with (
        scripted_service(tiny, tmp_path, record_content=False) as service,
        service.client() as client,
    ):
        run = answered(client, say="secret")
        told = followed(client, f"/v1/runs/{run}/events")
        assert "secret" not in json.dumps(told)
        counts = [json.loads(each["data"]) for each in told if each["event"] == "tokens"]
        assert sum(each["chars"] for each in counts) == len("secret")

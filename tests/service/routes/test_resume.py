"""`POST /v1/runs/{id}/resume`: what was cut short goes on, and what cannot is refused by name."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.batches import PATH, create_batch, ended_batch, runs_of
from tests.support.lives import (
    Connection,
    assert_stops_well,
    ended,
    moves,
    recorded_events,
    refused,
    until,
)
from tests.support.messages import scripted
from tests.support.running import Running, scripted_service

TEXT = "twelve words"
SLOW = {**scripted(say=TEXT, step_ms=60), "stream": True}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(tiny, tmp_path_factory.mktemp("data")) as running:
        yield running
        assert_stops_well(running)


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def cut_short(service: Running) -> str:
    """A run whose client left in the middle of the answer."""
    with Connection(service.url, SLOW) as asking:
        run = asking.run_id()
        asking.read_until(b"content_block_delta")
    assert ended(service, run)["state"] == "cancelled"
    return run


def why_not(client: httpx.Client, run: str) -> str:
    answer = client.post(f"/v1/runs/{run}/resume")
    assert refused(answer) == (400, "invalid_request_error")
    return answer.json()["error"]["message"]


def test_a_run_whose_client_left_is_finished_into_its_record_as_its_events_tell(
    service: Running, client: httpx.Client
) -> None:
    run = cut_short(service)
    before = [json.dumps(each) for each in _events(service, run)]
    answer = client.post(f"/v1/runs/{run}/resume")
    assert answer.status_code == 202
    assert answer.json()["id"] == run
    with client.stream("GET", f"/v1/runs/{run}/events", params={"after": len(before)}) as told:
        lines = [line for line in told.iter_lines() if line]
    ids = [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]
    assert ids == list(range(len(before) + 1, len(before) + 1 + len(ids)))
    assert lines[-2] == "event: ended"
    assert json.loads(lines[-1].removeprefix("data: "))["state"] == "succeeded"
    after = _events(service, run)
    assert [json.dumps(each) for each in after[: len(before)]] == before
    assert "".join(each.get("text", "") for each in after) == TEXT
    states = ["queued", "running", "cancelled", "queued", "running", "succeeded"]
    assert moves(service.run(run)) == states


def _events(service: Running, run: str) -> list[dict[str, Any]]:
    file = service.data_dir / service.run(run)["record"] / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_what_is_going_on_or_has_an_end_that_stands_is_refused(
    service: Running, client: httpx.Client
) -> None:
    done = client.post("/v1/messages", json=scripted()).headers["mererun-run"]
    assert "has succeeded: only what was cancelled or interrupted" in why_not(client, done)
    client.post("/v1/messages", json=scripted(then="fail"))
    failed = client.get("/v1/runs").json()["data"][0]["id"]
    assert f"{failed} has failed" in why_not(client, failed)
    with Connection(service.url, SLOW) as asking, Connection(service.url, SLOW) as waiting:
        running, queued = asking.run_id(), waiting.run_id()
        until(lambda: service.runs("running"))  # a stream opens before its run is claimed
        states = sorted(why_not(client, run).split()[-2] for run in (running, queued))
        assert states == ["queued", "running"]
        asking.read_to_end()
        waiting.read_to_end()
    assert refused(client.post("/v1/runs/run_none/resume")) == (404, "not_found_error")


def test_a_request_of_a_batch_is_refused(service: Running, client: httpx.Client) -> None:
    batch = create_batch(service, scripted(say="x", then="wait"))
    (run,) = runs_of(service, batch)
    until(lambda: recorded_events(service, run, "tokens"))
    client.post(f"{PATH}/{batch}/cancel")
    ended_batch(service, batch)
    assert f"is part of the batch {batch}" in why_not(client, run["id"])


def test_other_weights_and_records_that_are_gone_are_refused(
    service: Running, client: httpx.Client
) -> None:
    run = cut_short(service)
    file = service.data_dir / service.run(run)["record"] / "prompt.json"
    prompt = json.loads(file.read_text())
    for change, why in (
        ({"weights_sha256": "0" * 64}, "was begun with other weights of tiny"),
        ({"stop_sequences": 0}, "was recorded by an older mererun"),
        ({"ids": None}, "was recorded without its content"),
    ):
        file.write_text(json.dumps({**prompt, **change}))
        assert why in why_not(client, run)
    file.rename(file.with_name("moved"))
    assert "has no readable prompt.json" in why_not(client, run)
    file.with_name("moved").rename(file)
    file.write_text(json.dumps(prompt))
    assert client.post(f"/v1/runs/{run}/resume").status_code == 202
    assert ended(service, run)["state"] == "succeeded"


def test_another_model_is_refused(service: Running, client: httpx.Client) -> None:
    run = cut_short(service)
    with sqlite3.connect(service.data_dir / "mererun.db") as connection:
        connection.execute("UPDATE jobs SET model = 'other' WHERE id = ?", [run])
    assert "was begun by the model other, and tiny is served" in why_not(client, run)
    with sqlite3.connect(service.data_dir / "mererun.db") as connection:
        connection.execute("UPDATE jobs SET model = 'tiny' WHERE id = ?", [run])
    connection.close()

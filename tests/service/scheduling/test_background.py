"""Background work outlives what ends a run, but not for ever."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.batches import create_batch, results, runs_of, text_in
from tests.support.lives import (
    assert_answers,
    assert_one_at_a_time,
    assert_stops_well,
    assert_stored_well,
    ended,
    moves,
    open_runs,
    refused,
    until,
)
from tests.support.messages import body, scripted
from tests.support.pdfs import OPERATORS, PACKED, asked, document, packed, pdf
from tests.support.running import Running, scripted_service


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, drain_seconds=0.1) as running:
        yield running
        assert open_runs(running) == []
        assert_one_at_a_time(data)
        assert_stops_well(running)


def test_a_request_that_ends_the_engine_twice_is_not_tried_again(service: Running) -> None:
    batch = create_batch(service, scripted(say="ab", then="die"), body())
    poison, good = results(service, batch)
    assert poison["type"] == "errored"
    error = poison["error"]["error"]
    assert error["type"] == "api_error"
    assert error["message"].startswith("quarantined: it ended the engine 2 times")
    assert text_in(good) == "ok"
    run = ended(service, runs_of(service, batch)[0]["id"])
    assert moves(run) == ["queued", "running", "queued", "running", "failed"]
    assert run["output_tokens"] == 2


def test_a_request_that_services_end_with_is_not_tried_for_ever(service: Running) -> None:
    batch = create_batch(service, scripted(say="ab", then="wait"))
    [run] = runs_of(service, batch)
    for counted_before in (0, 4):
        until(lambda: service.run(run["id"])["state"] == "running")
        service.kill()
        with closing(sqlite3.connect(service.data_dir / "mererun.db")) as database:
            values = (counted_before, run["id"])
            database.execute("UPDATE jobs SET lost_leases = ? WHERE id = ?", values)
            database.commit()
        service.start()
    [result] = results(service, batch)
    assert result["error"]["error"]["message"].startswith("quarantined: 5 services ended")
    assert_answers(service)


def test_an_integer_of_hundreds_of_digits_costs_its_own_request_only(service: Running) -> None:
    huge = 10**400
    batch = create_batch(service, {**body(), "max_tokens": huge}, body(metadata={"note": huge}))
    refused_one, good = results(service, batch)
    assert refused_one["error"]["error"]["type"] == "invalid_request_error"
    assert text_in(good) == "ok"
    assert_answers(service)


def test_without_an_engine_background_work_waits(tiny: Path, tmp_path: Path) -> None:
    """And whoever has a reader is told."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny.iterdir():
        (model / file.name).symlink_to(file)
    with scripted_service(model, tmp_path / "data") as service:
        (model / "tokenizer.json").rename(model / "away")
        os.kill(service.engine_pid(), signal.SIGKILL)
        with service.client() as client:
            until(lambda: client.get("/v1/runtime").json()["engine"]["error"])
            batch = create_batch(service, body(), body())
            assert refused(client.post("/v1/messages", json=body())) == (500, "api_error")
        assert [run["state"] for run in runs_of(service, batch)] == ["queued", "queued"]
        (model / "away").rename(model / "tokenizer.json")
        assert [text_in(each) for each in results(service, batch)] == ["ok", "ok"]
        assert service.stop() == 0
        assert_stored_well(service.data_dir)


def test_whoever_has_a_connection_does_not_wait_for_the_documents_of_a_batch(
    service: Running,
) -> None:
    slow = pdf(packed(OPERATORS), content=PACKED, pages=100)  # takes longer than it may
    batch = create_batch(service, body(messages=asked(document(slow))), body())
    [run, _] = runs_of(service, batch)
    until(lambda: service.run(run["id"])["state"] == "running")
    assert_answers(service)
    assert service.run(run["id"])["state"] in ("queued", "running")
    until(lambda: service.run(run["id"])["state"] == "running")
    with service.client() as client:
        client.post(f"/v1/messages/batches/{batch}/cancel").raise_for_status()
    assert [each["type"] for each in results(service, batch)] == ["canceled", "canceled"]
    assert moves(service.run(run["id"]))[:3] == ["queued", "running", "queued"]

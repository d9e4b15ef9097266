"""API keys take turns, and whoever has a connection goes before background work."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from service.auth import add_key
from tests.support.batches import create_batch, runs_of
from tests.support.lives import Connection, assert_stops_well, recorded_events, until
from tests.support.messages import body, scripted
from tests.support.running import Running, scripted_service


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], dict[str, str]]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    first, second = ({"x-api-key": add_key(file)[1]} for _ in range(2))
    return file, first, second


@pytest.fixture(scope="module")
def many(keys: tuple[Path, dict[str, str], dict[str, str]]) -> dict[str, str]:
    """The key of someone with many requests."""
    return keys[1]


@pytest.fixture(scope="module")
def few(keys: tuple[Path, dict[str, str], dict[str, str]]) -> dict[str, str]:
    return keys[2]


@pytest.fixture(scope="module")
def service(
    tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
    keys: tuple[Path, dict[str, str], dict[str, str]],
) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, api_key_file=str(keys[0])) as running:
        yield running
        assert_stops_well(running)


def ask(service: Running, key: dict[str, str], **script: Any) -> Connection:
    """A streamed request that is in the queue or beyond."""
    connection = Connection(service.url, {**scripted(**script), "stream": True}, **key)
    connection.run_id()
    return connection


def started_after(service: Running, run_id: str) -> str:
    """Whose the runs were that began after that one, once all have ended: M for many, F for few."""
    with closing(sqlite3.connect(service.data_dir / "mererun.db")) as database:
        open_ones = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
        until(lambda: database.execute(open_ones).fetchone() == (0,))
        began = database.execute(
            "SELECT job_id, api_key FROM job_history JOIN jobs ON id = job_id "
            "WHERE to_state = 'running' AND job_history.attempt = 1 ORDER BY job_history.seq"
        ).fetchall()
    place, many = next((n, key) for n, (id, key) in enumerate(began) if id == run_id)
    return "".join("M" if key == many else "F" for _, key in began[place + 1 :])


def test_requests_of_two_keys_are_interleaved(
    service: Running, many: dict[str, str], few: dict[str, str], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with ExitStack() as connections:
        first = connections.enter_context(ask(service, many, hold_file=str(go)))
        for key in [many] * 30 + [few] * 3:
            connections.enter_context(ask(service, key))
        go.touch()
        assert started_after(service, first.run_id()) == "MFMFMF" + "M" * 27


def test_batches_of_two_keys_are_interleaved_after_what_has_a_connection(
    service: Running, many: dict[str, str], few: dict[str, str], tmp_path: Path
) -> None:
    """Also when the one that came late came while another waited to go on."""
    began, go = tmp_path / "began", tmp_path / "go"
    service.headers = many
    batch = create_batch(service, scripted(hold_file=str(began)), *[body()] * 30)
    [first, *_] = runs_of(service, batch)
    until(lambda: recorded_events(service, service.run(first["id"]), "prefill"))
    with ask(service, many, hold_file=str(go)) as connection:
        until(lambda: service.run(connection.run_id())["state"] == "running")
        create_batch(service, *[body()] * 3, **few)
        with ask(service, few) as other:
            began.touch()
            go.touch()
            other.read_to_end()
    assert started_after(service, connection.run_id()) == "F" + "MFMFMF" + "M" * 27

"""Requests that have the same `idempotency-key` are one request."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from service.auth import add_key
from tests.support.lives import (
    Connection,
    assert_stops_well,
    ended,
    moves,
    newest_run,
    open_runs,
    recorded_events,
    refused,
    until,
)
from tests.support.messages import scripted, text_of
from tests.support.running import Running, scripted_service


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def service(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, str, str]
) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, api_key_file=str(keys[0])) as running:
        running.headers["x-api-key"] = keys[1]
        yield running
        assert open_runs(running) == []
        assert_stops_well(running)


@pytest.fixture
def key() -> str:
    return uuid4().hex


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def ask(service: Running, key: str, request: dict[str, Any], **headers: str) -> httpx.Response:
    with service.client() as client:
        sent = {"idempotency-key": key, **headers}
        return client.post("/v1/messages", json=request, headers=sent)


def stream(service: Running, key: str, request: dict[str, Any]) -> Connection:
    headers = {"idempotency-key": key, **service.headers}
    return Connection(service.url, {**request, "stream": True}, **headers)


def joined(service: Running, run: dict[str, Any]) -> int:
    return len(recorded_events(service, run, "joined"))


def test_the_same_request_at_the_same_time_runs_once(service: Running, key: str, go: Path) -> None:
    """Some of them streamed, some not, from the first moment on and in the middle."""
    before = len(service.runs())
    request = scripted(say="once", hold_at=2, hold_file=str(go))
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, service, key, request) for _ in range(4)]
        streams = [stream(service, key, request) for _ in range(4)]
        for each in streams:
            each.read_until(b"content_block_delta")
        run = newest_run(service)
        until(lambda: joined(service, run) == 7)
        go.touch()
        messages = [each.result().raise_for_status().json() for each in answers]
    for each in streams:
        events = each.read_to_end()
        assert text_of(events) == "once"
        assert events[0]["message"]["id"] == run["message_id"]
        each.close()
    for message in messages:
        assert message == messages[0]
        assert (message["id"], message["content"][0]["text"]) == (run["message_id"], "once")
    assert len(service.runs()) == before + 1
    assert moves(ended(service, run["id"])) == ["queued", "running", "succeeded"]


def test_the_second_client_has_the_answer_when_the_first_has_gone(
    service: Running, key: str, go: Path
) -> None:
    request = scripted(say="once", hold_at=2, hold_file=str(go))
    with stream(service, key, request) as first, stream(service, key, request) as second:
        run_id = first.run_id()
        assert second.run_id() == run_id
        first.close()
        go.touch()
        assert text_of(second.read_to_end()) == "once"
    assert ended(service, run_id)["state"] == "succeeded"


def test_when_all_clients_have_gone_the_run_is_cancelled_and_asked_anew(
    service: Running, key: str, go: Path
) -> None:
    request = scripted(say="once", hold_at=2, hold_file=str(go))
    seen: set[str] = set()
    for _ in range(10):  # the next ones come while the earlier run may be about to be cancelled
        with stream(service, key, request) as first, stream(service, key, request) as second:
            first.read_until(b"content_block_delta")
            second.read_until(b"content_block_delta")
            seen |= {first.run_id(), second.run_id()}
    until(lambda: not open_runs(service))
    assert {service.run(run_id)["state"] for run_id in seen} == {"cancelled"}
    go.touch()
    answer = ask(service, key, request).raise_for_status()
    assert answer.headers["mererun-run"] not in seen


def test_the_answer_is_given_again_even_after_a_restart(service: Running, key: str) -> None:
    request = scripted(say="once")
    first = ask(service, key, request).raise_for_status()
    again = ask(service, key, request).raise_for_status()
    assert service.stop() == 0
    service.start()
    later = ask(service, key, request).raise_for_status()
    assert first.json() == again.json() == later.json()
    assert first.headers["mererun-run"] == later.headers["mererun-run"]
    with stream(service, key, request) as streamed:
        events = streamed.read_to_end()
    assert (text_of(events), events[-1]["type"]) == ("once", "message_stop")
    assert events[0]["message"]["id"] == first.json()["id"]


def test_another_request_with_the_key_is_refused(service: Running, key: str) -> None:
    ask(service, key, scripted(say="one")).raise_for_status()
    answer = ask(service, key, scripted(say="two"))
    assert refused(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"].startswith("idempotency-key: another request")


def test_a_key_is_the_callers_own(service: Running, key: str, keys: tuple[Path, str, str]) -> None:
    mine = ask(service, key, scripted(say="mine")).raise_for_status()
    other = ask(service, key, scripted(say="other"), **{"x-api-key": keys[2]}).raise_for_status()
    assert mine.json()["content"][0]["text"] == "mine"
    assert other.json()["content"][0]["text"] == "other"


def test_what_failed_is_tried_again(service: Running, key: str, tmp_path: Path) -> None:
    request = scripted(say="ok", die_at=1, die_once_file=str(tmp_path / "died"))
    assert refused(ask(service, key, request)) == (500, "api_error")
    assert ask(service, key, request).raise_for_status().json()["content"][0]["text"] == "ok"


@pytest.mark.parametrize("bad", ["", "k" * 256, "a\tb"], ids=["empty", "long", "tab"])
def test_a_key_that_cannot_be_kept_is_refused(service: Running, bad: str) -> None:
    answer = ask(service, bad, scripted())
    assert refused(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"].startswith("idempotency-key: ")


def test_without_recorded_content_the_answer_is_not_given_again(
    tiny: Path, tmp_path: Path, key: str, go: Path
) -> None:
    with scripted_service(tiny, tmp_path / "data", record_content=False) as service:
        request = scripted(say="once", hold_at=2, hold_file=str(go))
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask, service, key, request) for _ in range(2)]
            until(lambda: service.runs() and joined(service, newest_run(service)))
            go.touch()
            ids = {each.result().raise_for_status().json()["id"] for each in answers}
        assert len(ids) == 1
        answer = ask(service, key, request)
        assert refused(answer) == (400, "invalid_request_error")
        assert "records no content" in answer.json()["error"]["message"]
        assert_stops_well(service)

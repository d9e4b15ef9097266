"""`POST /v1/messages` and `count_tokens`, over the scripted engine."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.messages import body, check_order, events_of, scripted, text_of
from tests.support.running import Running, scripted_service


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(tiny, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def test_a_streamed_answer_has_its_events_in_order(client: httpx.Client) -> None:
    events = events_of(client, scripted(say="hello there"))
    check_order(events)
    assert text_of(events) == "hello there"
    assert events[-2]["delta"] == {
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
    }


def test_a_whole_answer_says_what_the_streamed_one_says(client: httpx.Client) -> None:
    message = client.post("/v1/messages", json=scripted(say="hello there")).json()
    assert message["content"] == [{"type": "text", "text": "hello there"}]
    assert message["usage"]["output_tokens"] == len("hello there") + 1
    counted = client.post("/v1/messages/count_tokens", json=scripted(say="hello there")).json()
    assert counted == {"input_tokens": message["usage"]["input_tokens"]}


def test_an_answer_without_text_has_no_block(client: httpx.Client) -> None:
    events = events_of(client, scripted(say=""))
    check_order(events)
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    assert client.post("/v1/messages", json=scripted(say="")).json()["content"] == []


def test_max_tokens_ends_an_answer(client: httpx.Client) -> None:
    message = client.post("/v1/messages", json={**body('{"say": "abcdef"}'), "max_tokens": 3})
    assert message.json()["stop_reason"] == "max_tokens"
    assert message.json()["content"][0]["text"] == "abc"

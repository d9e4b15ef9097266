"""Thinking and calls on their way through a run: interrupted, recorded, given again, refused."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.ids import call_id
from storage.answer_pieces import content_of, pieces_in
from tests.support.batches import create_batch, results, runs_of
from tests.support.fake_language import END, ids_of, write_fake_checkpoint
from tests.support.lives import (
    Connection,
    assert_answers,
    assert_stops_well,
    end,
    ended,
    newest_run,
    recorded_events,
    until,
)
from tests.support.messages import body, check_order, events_of, message_of
from tests.support.running import Running, scripted_service

THOUGHT = "<think>hm, é</think>"
RUN = '<call>run:{"cmd":"ls é"}</call>'
NOW = "<call>now:{}</call>"
SAID = f"{THOUGHT}See.{RUN}{NOW}"
BAD = '<call>run:{"bad":1}</call>'
TOOLS = [
    {"name": "run", "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}}},
    {"name": "now", "input_schema": {"type": "object"}},
]


def asking(say: str = SAID, *, script: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    request = body(json.dumps({"say": say, **(script or {})}), tools=TOOLS)
    return {**request, "max_tokens": 500, "thinking": {"type": "adaptive"}, **more}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(model, data, drain_seconds=0.1) as running:
        yield running
        assert_stops_well(running)


@pytest.fixture(scope="module")
def unguided(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Where calls are held until they are complete."""
    data = tmp_path_factory.mktemp("unguided")
    with scripted_service(model, data, grammar=False, ping_seconds=0.1) as running:
        yield running
        assert_stops_well(running)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def assert_said(message: dict[str, Any]) -> None:
    """That the message is what SAID is, with ids of its own and thinking that is signed."""
    thinking, *others = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "hm, é")
    assert thinking["signature"].startswith("mererun1.")
    ids = [call_id(message["id"], number) for number in range(2)]
    assert others == [
        {"type": "text", "text": "See."},
        {"type": "tool_use", "id": ids[0], "name": "run", "input": {"cmd": "ls é"}},
        {"type": "tool_use", "id": ids[1], "name": "now", "input": {}},
    ]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert message["usage"]["output_tokens"] == len(ids_of(SAID + END))
    details = message["usage"]["output_tokens_details"]
    assert details == {"thinking_tokens": len(ids_of(THOUGHT))}


def assert_recorded(service: Running, run: dict[str, Any], message: dict[str, Any]) -> None:
    """Each token once, and the content of the message."""
    events = recorded_events(service, run, "tokens")
    assert [id for event in events for id in event["ids"]] == ids_of(SAID + END)
    assert sum(event.get("thinking", 0) for event in events) == len(ids_of(THOUGHT))
    assert content_of(piece for each in events for piece in pieces_in(each)) == message["content"]


def test_a_stream_and_a_whole_answer_have_every_kind_of_block(service: Running) -> None:
    events = events_of_service(service, asking())
    with service.client() as client:
        answer = client.post("/v1/messages", json=asking()).raise_for_status()
    assert_said(answer.json())
    assert_said(message_of(events))
    for run in service.runs()[:2]:
        assert_recorded(service, run, response_of(service, run)["message"])


def test_integers_of_any_size_are_exact_wherever_an_answer_is_shown(service: Running) -> None:
    numbers = {"n": [9007199254740993, 2**64 + 1, -(2**63) - 1, 10**40 + 1]}
    request = asking(f"<call>run:{json.dumps(numbers)}</call>")
    headers = {"idempotency-key": uuid4().hex}
    with service.client(headers=headers) as client:
        whole = client.post("/v1/messages", json=request).raise_for_status().json()
        again = client.post("/v1/messages", json=request).raise_for_status().json()
    streamed = message_of(events_of_service(service, request))
    kept = response_of(service, service.runs()[0])["message"]
    for message in (whole, again, streamed, kept):
        assert message["content"][0]["input"] == numbers


PLACES = {
    "thinking": len(ids_of("<think>h")),
    "a character": len(ids_of("<think>hm, é")) - 1,
    "thought": len(ids_of(THOUGHT)),
    "a name": len(ids_of(f"{THOUGHT}See.<call>ru")),
    "arguments": len(ids_of(f'{THOUGHT}See.<call>run:{{"cmd":"l')),
    "between": len(ids_of(f"{THOUGHT}See.{RUN}")),
    "the end": len(ids_of(SAID)),
}


# However it ends, the record is all there is: the places need one end, and the ends one place.
@pytest.mark.parametrize(
    ("how", "place"),
    [*(("kill", place) for place in PLACES), ("stop", "arguments"), ("engine", "arguments")],
)
def test_an_interrupted_batch_goes_on_within_a_block(
    service: Running, go: Path, how: str, place: str
) -> None:
    at = PLACES[place]
    request = asking(script={"hold_at": at, "hold_file": str(go)})
    batch = create_batch(service, request)
    [run] = runs_of(service, batch)
    until(lambda: len(recorded_events(service, run, "tokens")) == at)
    end(service, how)
    go.touch()
    [result] = results(service, batch)
    assert_said(result["message"])
    assert_recorded(service, ended(service, run["id"]), result["message"])


def test_an_operator_resumes_what_was_left_within_a_call(service: Running, go: Path) -> None:
    at = len(ids_of(f'{THOUGHT}See.<call>run:{{"cmd":'))
    request = asking(script={"hold_at": at, "hold_file": str(go)}, stream=True)
    with Connection(service.url, request) as connection:
        connection.read_until(b"tool_use")
        run_id = connection.run_id()
    assert ended(service, run_id)["state"] == "cancelled"
    cut = response_of(service, service.run(run_id))["message"]["content"]
    assert [each["type"] for each in cut] == ["thinking", "text"]
    go.touch()
    with service.client() as client:
        client.post(f"/v1/runs/{run_id}/resume").raise_for_status()
    run = ended(service, run_id)
    message = response_of(service, run)["message"]
    assert_said(message)
    assert_recorded(service, run, message)


def test_the_answer_to_an_idempotency_key_is_given_again_with_all_its_blocks(
    service: Running,
) -> None:
    headers = {"idempotency-key": uuid4().hex}
    with service.client(headers=headers) as client:
        first = client.post("/v1/messages", json=asking()).raise_for_status().json()
        again = client.post("/v1/messages", json=asking()).raise_for_status().json()
    assert service.stop() == 0
    service.start()
    with service.client(headers=headers) as client:
        streamed = message_of(events_of(client, asking()))
    assert_said(first)
    assert first == again
    assert (streamed["id"], streamed["content"]) == (first["id"], first["content"])


def test_without_parallel_calls_the_engine_stops_after_the_first(service: Running) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    request = asking(tool_choice=choice, script={"then": "wait"})
    with service.client() as client:
        message = client.post("/v1/messages", json=request).raise_for_status().json()
    assert [each["type"] for each in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["stop_reason"] == "tool_use"
    more = message["usage"]["output_tokens"] - len(ids_of(f"{THOUGHT}See.{RUN}"))
    assert 0 < more < len(ids_of(RUN))
    assert_answers(service)


def test_thinking_that_is_not_to_be_shown_is_signed(service: Running) -> None:
    request = asking(thinking={"type": "adaptive", "display": "omitted"})
    with service.client() as client:
        message = client.post("/v1/messages", json=request).raise_for_status().json()
        streamed = message_of(events_of(client, request))
    for block in (message["content"][0], streamed["content"][0]):
        assert (block["type"], block["thinking"]) == ("thinking", "")
        assert block["signature"].startswith("mererun1.")
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] == len(ids_of(THOUGHT))


def test_a_call_that_tokens_run_out_in_ends_with_max_tokens(service: Running) -> None:
    request = asking(max_tokens=len(ids_of(f"{THOUGHT}See.{RUN}<call>now:{{")))
    with service.client() as client:
        message = client.post("/v1/messages", json=request).raise_for_status().json()
    assert [each["type"] for each in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["stop_reason"] == "max_tokens"
    check_order(events_of_service(service, request))


def test_pings_come_while_a_call_is_held(unguided: Running, go: Path) -> None:
    at = len(ids_of(f'{THOUGHT}See.<call>run:{{"cmd":'))
    request = asking(script={"hold_at": at, "hold_file": str(go)}, stream=True)
    with Connection(unguided.url, request) as connection:
        connection.read_until(b"text_delta")
        connection.read_until(b"event: ping")
        assert b"tool_use" not in connection.received
        go.touch()
        assert_said(message_of(connection.read_to_end()))


def test_an_invalid_call_fails_its_run_and_no_other(unguided: Running) -> None:
    request = asking(f"See.{BAD}{RUN}")
    *events, error = events_of_service(unguided, request)
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert "tool_use" not in json.dumps(events)
    with unguided.client() as client:
        answer = client.post("/v1/messages", json=request)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].startswith("the model called run in a way")
    [result] = results(unguided, create_batch(unguided, request))
    assert result["type"] == "errored"
    run = newest_run(unguided)
    assert (run["state"], run["output_tokens"]) == ("failed", len(ids_of(f"See.{BAD}")))
    kept = response_of(unguided, run)["message"]
    assert kept["content"] == [{"type": "text", "text": "See."}]
    assert_answers(unguided)


def test_without_recorded_content_nothing_of_thinking_and_calls_is_kept(
    model: Path, tmp_path: Path
) -> None:
    with scripted_service(model, tmp_path / "data", record_content=False) as service:
        with service.client() as client:
            client.post("/v1/messages", json=asking()).raise_for_status()
        run = newest_run(service)
        record = service.data_dir / run["record"]
        kept = "".join(file.read_text() for file in record.iterdir() if file.name != "request.json")
        kept = re.sub(r"(toolu|msg|run|req)_\w+", "", kept)  # ids are random words
        for word in ("hm, ", "See", "cmd", "ls é", '"run"'):
            assert word not in kept
        events = recorded_events(service, run, "tokens")
        assert sum(each["count"] for each in events) == run["output_tokens"]
        assert sum(each["chars"] for each in events) == len("hm, éSee.")
        assert_stops_well(service)


def events_of_service(service: Running, request: dict[str, Any]) -> list[dict[str, Any]]:
    with service.client() as client:
        return events_of(client, request)


def response_of(service: Running, run: dict[str, Any]) -> dict[str, Any]:
    return json.loads((service.data_dir / run["record"] / "response.json").read_text())

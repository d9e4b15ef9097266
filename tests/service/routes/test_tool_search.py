"""The model searches for tools, which the service does in the course of one answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from storage.database import Database
from storage.jobs import Jobs
from tests.support.batches import create_batch, results
from tests.support.fake_language import write_fake_checkpoint
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
from tests.support.messages import events_of, message_of, scripted
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

SEARCH = '<call>tool_search_tool_regex:{"query":"weather"}</call>'
WEATHER = '<call>weather:{"city":"Oslo"}</call>'


def tool(name: str, description: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "input_schema": {"type": "object"}, **more}


TOOLS: list[dict[str, Any]] = [
    {"type": "tool_search_tool_regex", "name": "tool_search_tool_regex"},
    tool("read"),
    tool("weather", "Tells the weather.", defer_loading=True),
    tool("clock", "Tells the time.", defer_loading=True),
]
FOUND = {
    "type": "tool_search_tool_search_result",
    "tool_references": [{"type": "tool_reference", "tool_name": "weather"}],
}


def asking(**script: Any) -> dict[str, Any]:
    return {**scripted(**script), "max_tokens": 1000, "tools": TOOLS}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_fake_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    data = tmp_path_factory.mktemp("data")
    with scripted_service(model, data, drain_seconds=0.1, ping_seconds=0.1) as running:
        yield running
        assert_stops_well(running)


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def answer(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    answered = client.post("/v1/messages", json=request)
    assert answered.status_code == 200, answered.text
    return answered.json()


def kinds(message: dict[str, Any]) -> list[str]:
    return [each["type"] for each in message["content"]]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    ids = ("id", "tool_use_id")
    content = [
        {key: each for key, each in block.items() if key not in ids} for block in message["content"]
    ]
    return {**{key: each for key, each in message.items() if key != "id"}, "content": content}


def test_what_is_found_is_used_in_the_same_answer(client: httpx.Client) -> None:
    request = asking(say=f"Hm.{SEARCH}", next={"say": f"So:{WEATHER}"})
    message = answer(client, request)
    _, called, found, _, used = message["content"]
    assert kinds(message) == [
        *("text", "server_tool_use", "tool_search_tool_result", "text", "tool_use")
    ]
    assert called["id"].startswith("srvtoolu_")
    assert called["input"] == {"query": "weather"}
    assert (found["tool_use_id"], found["content"]) == (called["id"], FOUND)
    assert (used["name"], used["input"]) == ("weather", {"city": "Oslo"})
    assert message["stop_reason"] == "tool_use"
    streamed = message_of(events_of(client, request))
    assert without_ids(streamed) == without_ids(message)


def test_usage_is_the_sum_of_the_rounds_and_tells_each(client: httpx.Client) -> None:
    request = asking(say=SEARCH, next={"say": "Done."})
    usage = answer(client, request)["usage"]
    counted = client.post(
        "/v1/messages/count_tokens",
        json={key: each for key, each in request.items() if key != "max_tokens"},
    ).json()["input_tokens"]
    first, second = usage["iterations"]
    assert first["type"] == second["type"] == "message"
    assert first["input_tokens"] == counted
    assert second["input_tokens"] > counted + first["output_tokens"]
    for field in ("input_tokens", "output_tokens", "cache_read_input_tokens"):
        assert usage[field] == first[field] + second[field]
    events = events_of(client, request)
    assert events[0]["message"]["usage"]["input_tokens"] == counted
    assert message_of(events)["usage"]["iterations"] == usage["iterations"]


def test_a_client_call_in_the_same_round_ends_the_answer(client: httpx.Client) -> None:
    message = answer(client, asking(say=f"{SEARCH}<call>read:{{}}</call>"))
    assert kinds(message) == ["server_tool_use", "tool_use", "tool_search_tool_result"]
    assert message["stop_reason"] == "tool_use"
    assert "iterations" not in message["usage"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [('{"query":"("}', "invalid_tool_input"), ("{}", "invalid_tool_input")],
)
def test_the_model_goes_on_after_a_search_that_failed(
    client: httpx.Client, arguments: str, code: str
) -> None:
    said = f"<call>tool_search_tool_regex:{arguments}</call>"
    message = answer(client, asking(say=said, next={"say": "Oh."}))
    assert kinds(message) == ["server_tool_use", "tool_search_tool_result", "text"]
    assert message["content"][1]["content"]["error_code"] == code
    assert message["stop_reason"] == "end_turn"


def test_there_is_an_end_to_searches(client: httpx.Client) -> None:
    script: dict[str, Any] = {"say": "Enough."}
    for _ in range(11):
        script = {"say": SEARCH, "next": script}
    message = answer(client, asking(**script))
    assert kinds(message) == ["server_tool_use", "tool_search_tool_result"] * 11 + ["text"]
    found = [each["content"] for each in message["content"][1::2]]
    assert found[:10] == [FOUND] * 10
    assert found[10]["error_code"] == "too_many_requests"


def test_rounds_have_one_budget(client: httpx.Client) -> None:
    request = {**asking(say=SEARCH, next={"say": "a" * 100}), "max_tokens": 80}
    message = answer(client, request)
    assert message["usage"]["output_tokens"] == 80
    assert message["stop_reason"] == "max_tokens"
    first = len(SEARCH)  # and no more: a search that was made has its result
    request = {**request, "max_tokens": message["usage"]["iterations"][0]["output_tokens"]}
    assert request["max_tokens"] <= first
    message = answer(client, request)
    assert kinds(message) == ["server_tool_use", "tool_search_tool_result"]
    assert message["stop_reason"] == "max_tokens"


def test_a_search_that_is_cut_short_is_not_shown(client: httpx.Client) -> None:
    request = {**asking(say=f"Hm.{SEARCH}"), "max_tokens": 20}
    message = message_of(events_of(client, request))
    assert (kinds(message), message["stop_reason"]) == (["text"], "max_tokens")


def test_a_client_that_goes_in_a_later_round_frees_the_engine(service: Running) -> None:
    request = {**asking(say=SEARCH, next={"say": "a", "then": "wait"}), "stream": True}
    with Connection(service.url, request) as connection:
        connection.read_until(b"text_delta")
        run = newest_run(service)
        connection.close()
        assert ended(service, run["id"])["state"] == "cancelled"
    assert_answers(service)


@pytest.mark.parametrize("how", ["kill", "stop", "engine"])
@pytest.mark.parametrize("event", ["prefill", "tokens"])
def test_a_batch_goes_on_in_the_round_it_was_in(
    service: Running, tmp_path: Path, how: str, event: str
) -> None:
    go = tmp_path / "go"
    held = {"hold_file": str(go), "hold_at": 3 if event == "tokens" else 0}
    request = asking(say=f"Hm.{SEARCH}", next={"say": f"So:{WEATHER}", **held})
    batch = create_batch(service, request)
    run = until(lambda: _in_round(service, event))
    end(service, how)
    go.touch()
    [result] = results(service, batch)
    message = result["message"]
    with service.client() as client:
        assert without_ids(message) == without_ids(answer(client, request))
    assert ended(service, run["id"])["state"] == "succeeded"


def _in_round(service: Running, event: str) -> dict[str, Any] | None:
    for run in service.runs("running"):
        rounds = recorded_events(service, run, "round")
        events = recorded_events(service, run, event)
        if rounds and events and events[-1]["seq"] > rounds[0]["seq"]:
            return run
    return None


def test_a_cancelled_run_is_resumed_in_its_round(service: Running, tmp_path: Path) -> None:
    go = tmp_path / "go"
    held = {"hold_file": str(go), "hold_at": 3}
    request = {**asking(say=SEARCH, next={"say": "abcdef", **held}), "stream": True}
    with Connection(service.url, request) as connection:
        connection.read_until(b"text_delta")
        run = newest_run(service)
    assert ended(service, run["id"])["state"] == "cancelled"
    go.touch()

    async def resume() -> bool:
        async with Database.open(service.data_dir / "mererun.db") as db:
            return await Jobs(db).resume(run["id"])

    assert anyio.run(resume)
    assert until(lambda: ended(service, run["id"])["state"]) == "succeeded"
    texts = [each.get("text", "") for each in recorded_events(service, run, "tokens")]
    assert "".join(texts) == "abcdef"


def test_a_repeated_request_gets_the_same_rounds(client: httpx.Client) -> None:
    request, key = asking(say=SEARCH, next={"say": "Done."}), {"idempotency-key": "again"}
    first = client.post("/v1/messages", json=request, headers=key).json()
    again = client.post("/v1/messages", json=request, headers=key).json()
    assert again == first
    streamed = message_of(events_of(client, {**request}))
    assert without_ids(streamed)["content"] == without_ids(first)["content"]


def test_a_strict_tool_beyond_any_grammar_that_is_found_ends_the_answer_with_why(
    tmp_path: Path,
) -> None:
    beyond = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    odd = tool("odd", "weather", defer_loading=True, strict=True, input_schema=beyond)
    call = '{"name": "tool_search_tool_regex", "arguments": {"query": "weather"}}'
    request = asking(say=f"<tool_call>\n{call}\n</tool_call>")
    model = write_tiny_qwen(tmp_path / "qwen", "qwen2.5")
    with scripted_service(model, tmp_path / "data") as service:
        with service.client() as client:
            answered = client.post("/v1/messages", json={**request, "tools": [*TOOLS, odd]})
        assert answered.status_code == 400
        assert answered.json()["error"]["message"].startswith("odd.strict: its schema")
        assert_stops_well(service)

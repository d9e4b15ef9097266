"""`count_tokens` renders as answering does, refuses as it does, and leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.requests.served import (
    EPHEMERAL,
    assistant,
    call,
    result,
    system,
    text,
    tool,
    user,
)
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen
from tests.support.wide_context import with_context

PATHS = ("/v1/messages/count_tokens", "/v1/messages")
LONG = {**EPHEMERAL, "ttl": "1h"}
DOCUMENT = {
    "type": "document",
    "title": "notes",
    "source": {"type": "text", "media_type": "text/plain", "data": "a\nb"},
}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIM"}
REQUEST: dict[str, Any] = {
    "model": "claude-test",
    "tools": [tool(f"Tool{n}", description="Does it. " * 9) for n in range(20)],
    "system": [text("You are kind."), text("Be brief.", cache_control=LONG)],
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "{}"},
    "safeguards": [{"type": "dangerous_tool_use"}],
    "made_up": {"x": 1},
    "messages": [
        user([text("Read both."), DOCUMENT]),
        system("Agents: explore."),
        assistant([THOUGHT, text("Yes."), call("1", "Tool1", path="a"), call("2", "Tool2")]),
        user(
            [
                result("2", [text("b"), DOCUMENT], cache_control=EPHEMERAL),
                result("1", "a", is_error=True),
                text("And now?", cache_control=EPHEMERAL),
            ]
        ),
        system([text("<total_tokens>9000 tokens left</total_tokens>")]),
    ],
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_tiny_qwen(tmp_path_factory.mktemp("models") / "tiny", "qwen3.5")
    data = tmp_path_factory.mktemp("data")
    with scripted_service(with_context(model, 8192), data) as running:
        yield running


def count(client: httpx.Client, **more: Any) -> int:
    response = client.post(PATHS[0], json={**REQUEST, **more})
    assert response.status_code == 200, response.text
    assert list(response.json()) == ["input_tokens", "context_management"]
    return response.json()["input_tokens"]


def records(service: Running) -> list[Path]:
    return list(service.data_dir.glob("runs/*/*/*/*"))


def test_a_coding_agents_request_is_counted_as_it_is_answered(client: httpx.Client) -> None:
    counted = count(client)
    assert counted > 3000
    for more in ({"stream": True}, {"max_tokens": "any"}, {"cache_control": EPHEMERAL}):
        assert count(client, **more) == counted
    usage = client.post(PATHS[1], json={**REQUEST, "max_tokens": 10}).json()["usage"]
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(usage[each] for each in parts) == counted


def test_every_part_of_a_request_counts(client: httpx.Client) -> None:
    counted = count(client)
    assert count(client, tools=REQUEST["tools"][:19]) < counted
    assert count(client, system=REQUEST["system"][:1]) < counted
    for place, message in enumerate(REQUEST["messages"]):
        if message["role"] == "assistant" or isinstance(message["content"], str):
            continue
        shorter = list(REQUEST["messages"])
        shorter[place] = {**message, "content": message["content"][:-1]}
        assert count(client, messages=shorter) < counted


def test_counting_leaves_no_run_behind(client: httpx.Client, service: Running) -> None:
    runs, before = client.get("/v1/runs").json(), records(service)
    count(client)
    assert client.post(PATHS[0], json={**REQUEST, "messages": []}).status_code == 400
    assert (client.get("/v1/runs").json(), records(service)) == (runs, before)


def test_a_request_beyond_the_context_is_counted(client: httpx.Client) -> None:
    assert count(client, messages=[user("x" * 300_000)]) > 300_000


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": None},
        {"system": [text("a", cache_control=EPHEMERAL), text("b", cache_control=LONG)]},
        {"system": [text("a", cache_control=EPHEMERAL)] * 5},
        {"messages": [user([text(" ", cache_control=EPHEMERAL)])]},
        {"messages": [user("a"), assistant([{**THOUGHT, "cache_control": EPHEMERAL}]), user("b")]},
        {"cache_control": {"type": "ephemeral", "ttl": "1d"}},
        {"system": [text("a")] + [text("b", cache_control=EPHEMERAL)] * 4, "cache_control": LONG},
        {"diagnostics": {"previous_message_id": 5}},
        {
            "messages": [
                user("a"),
                assistant([call("1")]),
                user(
                    [
                        result(
                            "1",
                            [
                                {
                                    "type": "image",
                                    "source": {
                                        "type": "base64",
                                        "media_type": "image/png",
                                        "data": "AA",
                                    },
                                }
                            ],
                        )
                    ]
                ),
            ]
        },
    ],
)
def test_both_endpoints_refuse_alike(client: httpx.Client, fields: dict[str, Any]) -> None:
    said = {
        refused(client.post(path, json={**REQUEST, "max_tokens": 10, **fields})) for path in PATHS
    }
    assert len(said) == 1

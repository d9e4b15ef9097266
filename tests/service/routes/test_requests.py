"""Requests as agents really send them: what is accepted, and what the model then sees."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.messages import body
from tests.support.refusals import refused
from tests.support.running import Running
from tests.support.tiny_checkpoint import DEFAULT_SYSTEM

PromptOf = Callable[[httpx.Response], str]
EPHEMERAL = {"type": "ephemeral"}
ANSWER = "<|im_start|>assistant\n"


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def asking(*messages: Any, **more: Any) -> dict[str, Any]:
    return {**body(), "messages": list(messages), **more}


def shown(*turns: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)


NOTE = turn("system", [text("Agent kinds: explore, plan.", cache_control=EPHEMERAL)])


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        pytest.param(
            [turn("user", "Open notes.txt"), NOTE],
            [
                ("system", "Be kind."),
                ("user", "Open notes.txt"),
                ("system", "Agent kinds: explore, plan."),
            ],
            id="last",
        ),
        pytest.param(
            [NOTE, turn("user", "hi")],
            [("system", "Be kind.\n\nAgent kinds: explore, plan."), ("user", "hi")],
            id="first",
        ),
        pytest.param(
            [turn("user", "hi"), turn("system", "a"), turn("system", "b"), turn("user", "go")],
            [("system", "Be kind."), ("user", "hi"), ("system", "a\n\nb"), ("user", "go")],
            id="two in a row",
        ),
        pytest.param(
            [turn("user", "hi"), turn("assistant", "ho"), turn("system", ""), turn("user", "go")],
            [("system", "Be kind."), ("user", "hi"), ("assistant", "ho"), ("user", "go")],
            id="empty",
        ),
    ],
)
def test_a_system_message_reaches_the_model_once_and_at_its_place(
    client: httpx.Client, prompt_of: PromptOf, messages: list[Any], turns: list[tuple[str, str]]
) -> None:
    request = asking(*messages, system=[text("Be kind.")])
    assert prompt_of(client.post("/v1/messages", json=request)) == shown(*turns) + ANSWER


def test_only_system_messages_are_no_conversation(client: httpx.Client) -> None:
    for request in (asking(NOTE), asking(NOTE, NOTE), asking(turn("system", ""))):
        message = refused(client.post("/v1/messages", json=request))
        assert message == "messages: at least one user or assistant message is required"


def test_other_roles_are_refused(client: httpx.Client) -> None:
    for role in ("developer", "tool", "System", "", None):
        request = asking(turn("user", "hi"), {"role": role, "content": "x"})
        message = refused(client.post("/v1/messages", json=request))
        assert message == "messages.1.role: Input should be 'user', 'assistant' or 'system'"


NEWER = {
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": json.dumps({"device_id": "device-in-clear", "session_id": "s0"})},
    "speed": "fast",
    "fallbacks": [],
    "diagnostics": {"x": 1},
}
NEWER_BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "context-management-2025-06-27,made-up-2099-01-01"
)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("version", ["2023-06-01", "2023-01-01", None])
def test_a_newer_clients_request_is_answered_and_what_it_loses_is_named(
    client: httpx.Client, path: str, version: str | None
) -> None:
    headers = {"anthropic-beta": NEWER_BETAS, "anthropic-dangerous-direct-browser-access": "true"}
    if version is not None:
        headers["anthropic-version"] = version
    response = client.post(f"{path}?beta=true", json=body(**NEWER), headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["mererun-ignored"] == "speed, fallbacks"
    assert "access-control-allow-origin" not in response.headers


def test_a_user_id_is_nowhere_in_clear(client: httpx.Client, service: Running) -> None:
    assert client.post("/v1/messages", json=body(**NEWER)).status_code == 200
    for file in service.data_dir.rglob("*"):
        assert not file.is_file() or b"device-in-clear" not in file.read_bytes(), file


def test_a_misspelt_required_field_is_missed_by_its_right_name(client: httpx.Client) -> None:
    request = body(max_token=10)
    del request["max_tokens"]
    assert refused(client.post("/v1/messages", json=request)) == "max_tokens: Field required"


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        (
            [turn("user", "a"), turn("assistant", [text("")]), turn("user", "b")],
            [("user", "a"), ("assistant", ""), ("user", "b")],
        ),
        (
            [turn("user", [text(""), text("a", cache_control=EPHEMERAL)])],
            [("user", "a")],
        ),
        ([turn("user", "   \n")], [("user", "   \n")]),
        (
            [turn("user", "a"), turn("user", [text(""), text("b")])],
            [("user", "a\n\nb")],
        ),
    ],
)
def test_empty_texts_beside_others_say_nothing(
    client: httpx.Client, prompt_of: PromptOf, messages: list[Any], turns: list[tuple[str, str]]
) -> None:
    request = asking(*messages)
    expected = shown(("system", DEFAULT_SYSTEM), *turns) + ANSWER
    assert prompt_of(client.post("/v1/messages", json=request)) == expected


@pytest.mark.parametrize("empty", ["", [], [text("")], [text(""), text("")]])
def test_a_user_message_without_text_is_refused_with_its_path(
    client: httpx.Client, empty: Any
) -> None:
    request = asking(turn("user", "a"), turn("assistant", "b"), turn("user", empty))
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        message = refused(client.post(path, json=request))
        assert message == "messages.2.content: user messages must hold some text"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_an_effort_that_the_model_lacks_is_refused_by_name(client: httpx.Client, path: str) -> None:
    response = client.post(path, json=body(**NEWER, output_config={"effort": "high"}))
    assert refused(response) == (
        "output_config.effort: 'high' is not supported by tiny; leave it out, or start the service"
        " with --ignore-unsupported-hints"
    )


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "Read", "input": {}}


def result(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


def test_a_history_with_tools_is_readable_for_a_model_without_them(
    client: httpx.Client, prompt_of: PromptOf
) -> None:
    messages = [
        turn("user", "a"),
        turn("assistant", [text(""), use("t")]),
        NOTE,
        turn("user", [result("t", content="none")]),
    ]
    expected = shown(
        ("system", DEFAULT_SYSTEM),
        ("user", "a"),
        ("assistant", "[called Read with {}]"),
        ("user", "[Read answered]\nnone"),
        ("system", "Agent kinds: explore, plan."),
    )
    assert prompt_of(client.post("/v1/messages", json=asking(*messages))) == expected + ANSWER


@pytest.mark.parametrize(
    ("messages", "start"),
    [
        ([turn("user", [result("t")])], "messages.0.content.0.tool_use_id: unexpected "),
        (
            [turn("user", "a"), turn("assistant", [use("t")]), turn("user", "b")],
            "messages.1.content.0: tool_use ids were found without tool_result blocks",
        ),
    ],
)
def test_calls_and_results_that_do_not_fit_are_refused_by_place(
    client: httpx.Client, messages: list[Any], start: str
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert refused(client.post(path, json=asking(*messages))).startswith(start)


def test_tools_are_refused_by_name(client: httpx.Client) -> None:
    tools = [{"name": "Read", "input_schema": {"type": "object"}}]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        message = refused(client.post(path, json=body(tools=tools)))
        assert message.startswith("tools: tool use is not supported")
    assert client.post("/v1/messages", json=body(tools=[])).status_code == 200


def test_a_claude_model_s_name_is_told_in_the_log_when_it_comes_first(service: Running) -> None:
    with service.client() as client:
        for _ in range(2):
            request = body(model="claude-told-in-the-log", max_tokens=1)
            assert client.post("/v1/messages", json=request).status_code == 200
    assert service.log.read_text().count("claude-told-in-the-log") == 1

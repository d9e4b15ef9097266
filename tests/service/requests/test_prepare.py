import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import ApiError
from service.json_body import parse
from service.requests.prepare import conversation_of
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from service.wire.validation import validate
from tests.service.requests.served import (
    ABLE,
    EPHEMERAL,
    TINY,
    assistant,
    prepared,
    refusal,
    system,
    text,
    tool,
    user,
)


def turns(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    conversation = prepared(messages=list(messages), **fields).conversation
    return [(turn.role, turn.text) for turn in conversation.turns]


def test_strings_and_text_blocks_give_the_same_turns() -> None:
    assert turns(user("hi"), assistant("yes?"), user("go"), system="be brief") == [
        ("system", "be brief"),
        ("user", "hi"),
        ("assistant", "yes?"),
        ("user", "go"),
    ]
    assert turns(
        user([text("hi", cache_control=EPHEMERAL)]),
        assistant([text("yes?", citations=None)]),
        user([text("go")]),
        system=[text("be brief")],
    ) == turns(user("hi"), assistant("yes?"), user("go"), system="be brief")


def test_text_blocks_of_one_turn_become_paragraphs() -> None:
    assert turns(user([text("a"), text("b")]), system=[text("x"), text("y")]) == [
        ("system", "x\n\ny"),
        ("user", "a\n\nb"),
    ]


def test_neighbouring_turns_of_one_role_are_merged() -> None:
    assert turns(user("a"), user([text("b")]), assistant("c"), assistant("d"), user("e")) == [
        ("user", "a\n\nb"),
        ("assistant", "c\n\nd"),
        ("user", "e"),
    ]


def test_a_late_system_message_keeps_its_place() -> None:
    late = system([text("Agent kinds: explore, plan.", cache_control=EPHEMERAL)])
    assert turns(user("Open notes.txt"), late, system=[text("You are a helper.")]) == [
        ("system", "You are a helper."),
        ("user", "Open notes.txt"),
        ("system", "Agent kinds: explore, plan."),
    ]


def test_system_messages_next_to_each_other_are_merged_with_the_system_field() -> None:
    assert turns(system("b"), system([text("c")]), user("hi"), system="a") == [
        ("system", "a\n\nb\n\nc"),
        ("user", "hi"),
    ]


@pytest.mark.parametrize("empty", [[], "", [text("")], None])
def test_a_system_message_that_says_nothing_disappears(empty: Any) -> None:
    nothing = system(empty, output_config={"effort": "medium"})
    assert turns(user("a"), nothing, user("b"), system="") == [("user", "a\n\nb")]


def test_a_system_message_may_lack_content() -> None:
    silent = {"role": "system", "output_config": {"effort": "medium"}}
    assert turns(user("a"), silent) == [("user", "a")]


@pytest.mark.parametrize("only", [[system("x")], [system("")], [system("x"), system([])]])
def test_a_conversation_of_system_text_alone_is_refused(only: list[Any]) -> None:
    message = refusal(messages=only, system="s").message
    assert message == "messages: at least one user or assistant message is required"


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize("empty", ["", [], [text("")], [text(""), text("")]])
def test_a_user_message_without_text_is_refused_with_its_path(
    empty: Any, kind: type[BaseRequest]
) -> None:
    message = refusal(kind, messages=[user("a"), assistant("b"), user(empty)]).message
    assert message == "messages.2.content: user messages must hold some text"


def test_whitespace_is_text() -> None:
    assert turns(user("   \n")) == [("user", "   \n")]


def test_empty_text_blocks_beside_others_are_dropped() -> None:
    beside = [text(""), text("a"), text(""), text("b")]
    assert turns(user(beside), assistant(beside)) == [
        ("user", "a\n\nb"),
        ("assistant", "a\n\nb"),
    ]


@pytest.mark.parametrize("empty", ["", [], [text("")]])
def test_an_empty_assistant_message_is_an_empty_turn(empty: Any) -> None:
    assert turns(user("a"), assistant(empty), user("b")) == [
        ("user", "a"),
        ("assistant", ""),
        ("user", "b"),
    ]
    assert turns(user("a"), assistant(empty), assistant("b")) == [("user", "a"), ("assistant", "b")]


def test_a_last_assistant_message_is_a_prefill() -> None:
    assert prepared(messages=[user("a"), assistant("{")]).conversation.prefills


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        {"type": "container_upload", "file_id": "f"},
    ],
)
def test_other_blocks_are_refused_by_type_and_path(
    block: dict[str, Any], kind: type[BaseRequest]
) -> None:
    fault = refusal(kind, messages=[user("a"), user([text("x"), block])])
    assert fault.message == (
        f"messages.1.content.1: {block['type']} blocks are not supported by able yet;"
        " send their content as text"
    )


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"container": "c"},
            "container: code execution is not supported; send the request without container",
        ),
        (
            {"mcp_servers": [{"type": "url", "url": "u", "name": "n"}]},
            "mcp_servers: calling MCP servers is not supported; connect them in the client",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    fields: dict[str, Any], message: str, kind: type[BaseRequest]
) -> None:
    assert refusal(kind, **fields).message == message


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"mcp_servers": []},
        {"tool_choice": {"type": "auto"}},
        {"thinking": {"type": "disabled"}},
        {"metadata": {"user_id": '{"device_id":"d0"}'}},
        {"service_tier": "auto", "inference_geo": "eu", "cache_control": None},
        {"billing_policy": {"type": "billing_policy"}, "fallback_credit_token": "x"},
        {"speed": "standard", "diagnostics": None},
        {"diagnostics": {"previous_message_id": None}},
        {"diagnostics": {"previous_message_id": "msg_1", "x": 1}},
        {"temperature": 0, "top_k": 5, "top_p": 0.5, "seed": 1},
    ],
)
def test_harmless_fields_are_accepted_without_a_word(fields: dict[str, Any]) -> None:
    assert prepared(**fields) == prepared()


def test_a_request_of_a_newer_client_is_accepted_and_what_it_loses_is_named() -> None:
    accepted = prepared(
        served=TINY,
        stream=True,
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"task_budget": {"type": "tokens", "total": 5}},
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        metadata={"user_id": '{"device_id":"d0","account_uuid":"","session_id":"s0"}'},
        speed="fast",
        fallbacks=[],
        diagnostics={"x": 1},
        messages=[user("hi"), system("x", output_config={"effort": "low"})],
    )
    assert accepted.ignored == (
        "output_config.task_budget",
        "speed",
        "messages.output_config",
        "fallbacks",
    )


def test_unknown_fields_within_those_that_are_known_are_named() -> None:
    accepted = prepared(
        thinking={"type": "adaptive", "display": "omitted", "newf": 1},
        output_config={"effort": "low", "newf": 1},
        cache_control={"type": "ephemeral", "scope": "global"},
        metadata={"user_id": "u", "zz": 1, "é": 2, "none": None},
        thread={"type": "create", "zz": 1},
        tool_choice={"type": "auto", "zz": 1},
        tools=[
            tool("a", zz=1, input_examples=[{"x": 1}], eager_input_streaming=True),
            tool("b", zz=2, input_examples=[{"x": 1}], yy=None),
            tool("c", input_examples=[]),
        ],
    )
    assert sorted(accepted.ignored) == [
        "cache_control.scope",
        "metadata.?",
        "metadata.zz",
        "output_config.newf",
        "thinking.newf",
        "thread.zz",
        "tool_choice.zz",
        "tools.input_examples",
        "tools.zz",
    ]


def test_names_of_ignored_fields_are_safe_in_a_header() -> None:
    assert prepared(**{"a\r\nset-cookie: x": 1, "é" * 100: 2}).ignored == (
        "a??set-cookie??x",
        "?" * 64,
    )


def test_only_some_of_many_ignored_fields_are_named() -> None:
    many: dict[str, Any] = {f"x{n}": n for n in range(1000)}
    assert len(prepared(**many).ignored) == 20
    assert len(prepared(metadata=many, tools=[tool(**many)]).ignored) == 20


def test_counting_does_not_mention_what_only_answers_need() -> None:
    assert prepared(CountTokensRequest, max_tokens=5, stream=True).ignored == ()


def test_counting_and_answering_see_the_same_conversation() -> None:
    messages = [user("a"), system("b"), assistant([text("c"), text("")]), user([text("d")])]
    assert prepared(messages=messages) == prepared(CountTokensRequest, messages=messages)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["text", "user", "system", "assistant", "thinking", "ephemeral", "auto"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "source", "ttl", "edits", "x"]),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from([*MessagesRequest.model_fields, "x"]), json_values)


def check_answer_or_refusal(body: Any, kind: type[BaseRequest]) -> None:
    refused: list[str] = []
    roles: list[str] = []
    try:
        request = validate(parse(json.dumps(body).encode(), "application/json"), kind)
        roles += [turn.role for turn in conversation_of(request, ABLE).conversation.turns]
    except ApiError as error:
        refused.append(error.message)
    assert all(first != second for first, second in pairwise(roles))
    for word in ("pydantic", "validator", "#", "Traceback", "instance of"):
        assert all(word not in message for message in refused)


@settings(deadline=None)
@given(json_values | bodies, st.sampled_from([MessagesRequest, CountTokensRequest]))
def test_any_json_body_is_answered_or_refused(body: Any, kind: type[BaseRequest]) -> None:
    check_answer_or_refusal(body, kind)


@settings(deadline=None)
@given(st.sampled_from(list(MessagesRequest.model_fields)), json_values)
def test_any_value_in_any_field_is_answered_or_refused(field: str, value: Any) -> None:
    body = {"model": "m", "max_tokens": 16, "messages": [user("hi")], field: value}
    check_answer_or_refusal(body, MessagesRequest)


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant", "system"]),
                "content": st.text(max_size=3)
                | st.lists(
                    json_values
                    | st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=3)}),
                    max_size=3,
                ),
            }
        ),
        max_size=5,
    )
)
def test_any_history_is_answered_or_refused(messages: list[Any]) -> None:
    check_answer_or_refusal({"model": "m", "max_tokens": 16, "messages": messages}, MessagesRequest)

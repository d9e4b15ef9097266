"""Calls, results and thinking of earlier answers as turns."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.conversation import Block, Conversation, Text, Thinking, ToolCall, ToolResult
from service.errors import ApiError
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from tests.service.requests.served import (
    ABLE,
    SIGNER,
    TINY,
    assistant,
    call,
    prepared,
    refusal,
    result,
    system,
    text,
    user,
)


def turns(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, list[Block]]]:
    conversation = prepared(messages=list(messages), **fields).conversation
    return [(turn.role, list(turn.blocks)) for turn in conversation.turns]


def test_calls_and_results_are_blocks_of_their_turns() -> None:
    messages = (
        user("Look."),
        assistant([text("I look."), call("1", path="a"), call("2", "Run")]),
        user([result("1", "one"), result("2", is_error=True), text("And?")]),
    )
    assert turns(*messages) == [
        ("user", [Text("Look.")]),
        (
            "assistant",
            [Text("I look."), ToolCall("1", "Read", {"path": "a"}), ToolCall("2", "Run", {})],
        ),
        (
            "user",
            [
                ToolResult("1", "Read", "one"),
                ToolResult("2", "Run", "", is_error=True),
                Text("And?"),
            ],
        ),
    ]
    assert turns(*messages) == turns(*messages, served=TINY)


@pytest.mark.parametrize(
    "content", [[result("1")], [result("1", None)], [result("1", [])], [result("1", [text("")])]]
)
def test_a_result_may_be_nothing(content: list[Any]) -> None:
    assert turns(user("a"), assistant([text(""), call("1")]), user(content))[1:] == [
        ("assistant", [ToolCall("1", "Read", {})]),
        ("user", [ToolResult("1", "Read", "")]),
    ]


def test_results_are_paired_by_id_and_come_in_the_order_of_their_calls_before_text() -> None:
    assert turns(
        user("a"),
        assistant([call("1"), call("2")]),
        assistant([call("3")]),
        user([text("first"), result("3", "c")]),
        user([result("2", "b"), text("between"), result("1", "a")]),
        user("last"),
    )[2] == (
        "user",
        [
            ToolResult("1", "Read", "a"),
            ToolResult("2", "Read", "b"),
            ToolResult("3", "Read", "c"),
            Text("first\n\nbetween\n\nlast"),
        ],
    )


def test_a_system_message_between_calls_and_results_comes_after_them() -> None:
    assert turns(
        user("a"),
        assistant([call("1"), call("2")]),
        system("x"),
        user([result("2")]),
        system("y"),
        user([result("1")]),
        user("b"),
    )[2:] == [
        ("user", [ToolResult("1", "Read", ""), ToolResult("2", "Read", "")]),
        ("system", [Text("x\n\ny")]),
        ("user", [Text("b")]),
    ]


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [user("a"), assistant([text("x"), call("toolu_1")]), user("b")],
            "messages.1.content.1: tool_use ids were found without tool_result blocks immediately"
            " after: toolu_1",
        ),
        (
            [user("a"), assistant([call("1"), call("2")]), user([result("1")]), assistant("c")],
            "messages.1.content.1: tool_use ids were found without tool_result blocks immediately"
            " after: 2",
        ),
        (
            [user("a"), assistant([call("1")])],
            "messages.1.content.0: tool_use ids were found without tool_result blocks immediately"
            " after: 1",
        ),
        (
            [user([result("toolu_9")])],
            "messages.0.content.0.tool_use_id: unexpected tool_use_id toolu_9: a tool_result must"
            " have its tool_use in the assistant message before it",
        ),
        (
            [user("a"), assistant([call("1")]), user([result("1"), result("1")])],
            "messages.2.content.1.tool_use_id: each tool_use must have a single result, and 1 has"
            " one already",
        ),
        (
            [
                user("a"),
                assistant([call("1")]),
                user([result("1")]),
                assistant("b"),
                user([result("1")]),
            ],
            "messages.4.content.0.tool_use_id: unexpected tool_use_id 1: a tool_result must have"
            " its tool_use in the assistant message before it",
        ),
        (
            [
                user("a"),
                assistant([call("call_0", x=1)]),
                user([result("call_0")]),
                assistant([call("call_0", x=2)]),
                user([result("call_0")]),
            ],
            "messages.3.content.0.id: tool_use ids must be unique, and call_0 is that of"
            " messages.1.content.0",
        ),
    ],
)
def test_calls_and_results_that_do_not_fit_are_refused_by_place_and_id(
    messages: list[Any], message: str, kind: type[BaseRequest]
) -> None:
    assert refusal(kind, messages=messages).message == message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([text("a"), text("b")], "a\n\nb"),
        (
            [{"type": "tool_reference", "tool_name": "Gone"}, text("one match")],
            "Tool: Gone\n\none match",
        ),
        (
            [{"type": "search_result", "source": "s", "title": "t", "content": [text("x")]}],
            "t\ns\nx",
        ),
        (
            [
                {
                    "type": "document",
                    "title": "t",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                }
            ],
            "t\nd",
        ),
        (
            [{"type": "document", "source": {"type": "content", "content": [text("x")]}}],
            "x",
        ),
        ([{"type": "browser_state", "tabs": [{"id": 1}]}], '{"tabs":[{"id":1}]}'),
    ],
)
def test_results_of_every_kind_of_text_are_read(content: list[Any], expected: str) -> None:
    last = turns(user("a"), assistant([call("1")]), user([result("1", content)]))[-1]
    assert last == ("user", [ToolResult("1", "Read", expected)])


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


def test_what_has_no_text_is_refused_inside_of_results_too() -> None:
    for served in (ABLE, TINY):
        messages = [user("a"), assistant([call("1")]), user([result("1", [text("x"), IMAGE])])]
        assert refusal(served=served, messages=messages).message == (
            f"messages.2.content.0.content.1: image blocks are not supported by {served.model} yet;"
            " send their content as text"
        )


def thought(value: str, place: int = 0, message: str = "msg_1", **fields: Any) -> dict[str, Any]:
    signature = SIGNER.sign(value, fields.pop("model", "able"), message, place, **fields)
    shown = "" if fields.get("omitted") else value
    return {"type": "thinking", "thinking": shown, "signature": signature}


def test_thinking_that_was_signed_here_is_shown_again_verbatim() -> None:
    answer = [thought(" a\n"), text("x"), thought("b", 1, omitted=True), call("1")]
    assert turns(user("q"), assistant(answer), user([result("1")]))[1] == (
        "assistant",
        [Thinking(" a\n"), Text("x"), Thinking("b"), ToolCall("1", "Read", {})],
    )


def test_a_note_before_a_call_is_text_for_the_model() -> None:
    answer = [thought("I look.", is_note=True), call("1")]
    assert turns(user("q"), assistant(answer), user([result("1")]))[1] == (
        "assistant",
        [Text("I look."), ToolCall("1", "Read", {})],
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "thinking", "thinking": "hm", "signature": "EqQBCgIYAhIM"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "hm", "signature": None},
        {"type": "thinking", "thinking": "", "signature": "é\ud800"},
        {"type": "redacted_thinking", "data": "AAAA"},
        thought("of another model", model="other"),
    ],
)
def test_other_thinking_is_dropped_and_the_answer_says_so(block: dict[str, Any]) -> None:
    messages = [user("a"), assistant([block, text("b")]), user("c"), assistant([block]), user("d")]
    accepted = prepared(messages=messages)
    assert [list(each.blocks) for each in accepted.conversation.turns] == [
        [Text("a")],
        [Text("b")],
        [Text("c")],
        [],
        [Text("d")],
    ]
    assert accepted.ignored == (f"messages.{block['type']}",)


ALTERED = [
    [{**thought("a"), "thinking": "b"}],
    [{**thought("a"), "thinking": ""}],
    [{**thought("a", omitted=True), "thinking": "a"}],
    [{**thought("a"), "signature": thought("a")["signature"][:-1]}],
    [{**thought("a"), "signature": thought("a")["signature"].rpartition(".")[0]}],
    [{**thought("a"), "signature": thought("a", 1)["signature"]}, thought("a", 1)],
    [thought("b", 1), thought("a", 0)],
    [thought("a"), text("x"), thought("a")],
]


@pytest.mark.parametrize("blocks", ALTERED)
@pytest.mark.parametrize("served", [ABLE, TINY])
def test_thinking_that_was_altered_or_moved_is_refused_with_its_place(
    blocks: list[Any], served: Any
) -> None:
    served = replace(served, model="able")
    message = refusal(served=served, messages=[user("a"), assistant(blocks), user("b")]).message
    assert message.startswith("messages.1.content.")
    assert "this thinking is not as this server signed it" in message


SEARCHED = [
    {"type": "server_tool_use", "id": "srvtoolu_01", "name": "web_search", "input": {"query": "x"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_01",
        "content": [{"type": "web_search_result", "title": "T", "url": "u", "page_age": None}],
    },
    {"type": "container_upload", "file_id": "file_1"},
]


def test_blocks_of_tools_that_other_servers_ran_are_dropped_and_named() -> None:
    accepted = prepared(
        messages=[user("a"), assistant([text("x"), *SEARCHED, text("y")]), user("b")]
    )
    assert accepted.conversation.turns[1].blocks == (Text("x\n\ny"),)
    assert accepted.ignored == (
        "messages.server_tool_use",
        "messages.web_search_tool_result",
        "messages.container_upload",
    )


def test_a_last_assistant_message_must_end_with_text_or_say_nothing() -> None:
    assert refusal(messages=[user("a"), assistant([thought("x")])]).message == (
        "messages.1.content: a last assistant message must end with text, which the answer goes on"
        " with; leave it out for a new answer"
    )
    for nothing in ("", [], [text("")], [{"type": "redacted_thinking", "data": "A"}]):
        assert turns(user("a"), assistant(nothing)) == [("user", [Text("a")])]
    assert turns(user("a"), assistant([thought("x"), text("y")]))[-1] == (
        "assistant",
        [Thinking("x"), Text("y")],
    )


ids = st.sampled_from("123")
texts = st.builds(text, st.sampled_from(["", "a", " \n"]))
messages = st.one_of(
    st.builds(user, st.lists(texts | st.builds(result, ids, st.just("r")), max_size=4)),
    st.builds(
        assistant, st.lists(texts | st.builds(call, ids) | st.just(thought("t")), max_size=4)
    ),
    st.builds(system, st.sampled_from(["", "s"])),
)


def check_normal(conversation: Conversation) -> None:
    """What `Conversation` and `Turn` promise to families."""
    for turn, following in pairwise((*conversation.turns, None)):
        assert turn is not None
        kinds = [type(each) for each in turn.blocks]
        assert (Text, Text) not in pairwise(kinds)
        assert all(each.text for each in turn.blocks if isinstance(each, Text))
        match turn.role:
            case "system":
                assert kinds == [Text]
            case "user":
                assert kinds in (
                    [ToolResult] * len(kinds),
                    [ToolResult] * (len(kinds) - 1) + [Text],
                )
            case "assistant":
                assert ToolResult not in kinds
        calls = [each.id for each in turn.blocks if isinstance(each, ToolCall)]
        results = [
            each.call_id
            for each in (following.blocks if following else ())
            if isinstance(each, ToolResult)
        ]
        assert results == calls
        assert following is None or following.role != turn.role
    if conversation.prefills:
        assert isinstance(conversation.turns[-1].blocks[-1], Text)


@settings(deadline=None, max_examples=300)
@given(st.lists(messages, max_size=8))
def test_any_history_holds_together_or_is_refused(messages: list[Any]) -> None:
    refused: list[str] = []
    try:
        check_normal(prepared(messages=messages).conversation)
    except ApiError as error:
        refused.append(error.message)
    assert all(each.startswith("messages") for each in refused)


@settings(deadline=None, max_examples=300)
@given(st.lists(messages, max_size=8))
def test_what_was_said_keeps_its_place(messages: list[Any]) -> None:
    so_far: list[tuple[str, list[Block]]] = []
    for end in range(1, len(messages) + 1):
        try:
            now = turns(*messages[:end])
        except ApiError:
            continue
        assert now[: max(0, len(so_far) - 1)] == so_far[:-1]
        so_far = now

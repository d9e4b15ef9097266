"""Markers of the prompt cache: which are allowed, and what of the conversation they mark."""

from typing import Any

import pytest

from models.conversation import Conversation, Mark, Text, Thinking, ToolCall, ToolResult
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from tests.service.requests.served import (
    EPHEMERAL,
    SIGNER,
    assistant,
    call,
    prepared,
    refusal,
    result,
    system,
    text,
    tool,
    user,
)

SHORT = EPHEMERAL
LONG = {"type": "ephemeral", "ttl": "1h"}
KINDS = [MessagesRequest, CountTokensRequest]
BLANK = "text: cache_control cannot be set for empty text blocks"
ORDER = (
    "cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control"
    " block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."
)
FIVE = "cache_control: A maximum of 4 blocks with cache_control may be provided. Found 5."


def marked(value: str = "x", marker: dict[str, Any] = SHORT) -> dict[str, Any]:
    return text(value, cache_control=marker)


ATTRIBUTION = "x-anthropic-billing-header: cc_version=1;"
COUNTER = "Token usage: 1/20; 19 remaining"
UPLOAD = {"type": "container_upload", "file_id": "f"}
WEB_RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "w",
    "content": [],
    "cache_control": SHORT,
}
EMPTY_DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": ""},
    "cache_control": SHORT,
}


def thought(value: str) -> dict[str, Any]:
    signature = SIGNER.sign(value, "able", "msg_1", 0)
    return {"type": "thinking", "thinking": value, "signature": signature}


def document(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "content", "content": content}, **fields}


def found(title: str, *texts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "type": "search_result",
        "source": "s",
        "title": title,
        "content": list(texts),
        **fields,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"system": [marked("")]}, f"system.0.{BLANK}"),
        ({"messages": [user([text("a"), marked(" \n")])]}, f"messages.0.content.1.{BLANK}"),
        (
            {"messages": [user("a"), assistant([call("1")]), user([result("1", [marked("")])])]},
            f"messages.2.content.0.content.0.{BLANK}",
        ),
        (
            {"messages": [user([document([marked("")])])]},
            f"messages.0.content.0.source.content.0.{BLANK}",
        ),
        ({"messages": [user([found("t", marked(""))])]}, f"messages.0.content.0.content.0.{BLANK}"),
        (
            {"system": [marked()], "messages": [user([text("a"), marked(marker=LONG)])]},
            f"messages.0.content.1.{ORDER}",
        ),
        (
            {"tools": [tool(cache_control=SHORT)], "system": [marked(marker=LONG)]},
            f"system.0.{ORDER}",
        ),
        (
            {"tools": [tool("a", cache_control=SHORT), tool("b", cache_control=LONG)]},
            f"tools.1.{ORDER}",
        ),
        (
            {
                "messages": [
                    user("a"),
                    assistant([call("1")]),
                    user([result("1", [marked()], cache_control=LONG)]),
                ]
            },
            f"messages.2.content.0.{ORDER}",
        ),
        ({"system": [marked()], "cache_control": LONG}, ORDER),
        ({"system": [marked()] * 5}, f"system.4.{FIVE}"),
        (
            {
                "tools": [tool(cache_control=SHORT)],
                "system": [marked()],
                "messages": [
                    user([marked()]),
                    assistant([call("1", x=1) | {"cache_control": SHORT}]),
                    user([result("1", [marked()])]),
                ],
            },
            f"messages.2.content.0.content.0.{FIVE}",
        ),
        ({"system": [marked()] * 4, "cache_control": SHORT}, FIVE),
        (
            {"messages": [user([marked(marker=LONG)])], "cache_control": SHORT},
            "cache_control.ttl: the last block has a cache_control of another ttl"
            " (messages.0.content.0.cache_control); leave one of the two out",
        ),
        (
            {
                "messages": [
                    user("a"),
                    assistant(
                        [
                            {
                                "type": "tool_search_tool_result",
                                "tool_use_id": "1",
                                "content": {
                                    "type": "tool_search_tool_search_result",
                                    "tool_references": [],
                                    "cache_control": SHORT,
                                },
                            }
                        ]
                    ),
                ]
            },
            "messages.1.content.0.content.cache_control: blocks of this kind have none; put it on"
            " the block before or after",
        ),
    ],
)
def test_markers_that_are_not_allowed_are_refused_by_both_endpoints(
    fields: dict[str, Any], message: str, kind: type[BaseRequest]
) -> None:
    assert refusal(kind, **fields).message == message


def marks(**fields: Any) -> list[tuple[str, int]]:
    """What is kept of the conversation, as the end of each marked part, and for how long."""
    return list(_marks(prepared(**fields).conversation))


def _marks(conversation: Conversation) -> Any:
    for each in conversation.form.tools:
        if each.kept_seconds:
            yield each.name, each.kept_seconds
    for turn in conversation.turns:
        for block in turn.blocks:
            match block:
                case Text(text, marks) | ToolResult(text=text, marks=marks):
                    yield from (
                        (text[: each.characters].split("\n")[-1], each.ttl_seconds)
                        for each in marks
                    )
                case ToolCall():
                    if block.kept_seconds:
                        yield block.id, block.kept_seconds
                case Thinking():
                    pass


def test_markers_are_found_wherever_they_may_be() -> None:
    history = [
        user([found("t", marked("e", LONG), text("f")), text("g")]),
        assistant([text("h"), call("1") | {"cache_control": SHORT}]),
        user([result("1", [text("i"), marked("j")]), text("k")]),
    ]
    assert marks(tools=[tool("a", cache_control=LONG), tool("b")], messages=history) == [
        ("a", 3600),
        ("e", 3600),
        ("1", 300),
        ("j", 300),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_four_markers_are_allowed_and_counting_keeps_nothing(kind: type[BaseRequest]) -> None:
    fields: dict[str, Any] = {
        "system": [marked("a", LONG), marked("b", LONG)],
        "messages": [user([marked("c"), marked("d")])],
    }
    kept = list(_marks(prepared(kind, **fields).conversation))
    if kind is CountTokensRequest:
        assert kept == []
    else:
        assert kept == [("a", 3600), ("b", 3600), ("c", 300), ("d", 300)]


def test_marks_keep_their_places_when_texts_are_merged() -> None:
    (turn,) = prepared(
        messages=[user([text("ab"), marked("cd", LONG), text("")]), user([marked("ef"), text("g")])]
    ).conversation.turns
    assert turn.blocks == (Text("ab\n\ncd\n\nef\n\ng", (Mark(6, 3600), Mark(10, 300))),)


def test_a_mark_in_a_system_turn_that_has_to_wait_goes_with_it() -> None:
    turns = prepared(
        messages=[
            user("a"),
            assistant([call("1"), call("2")]),
            system([text("b"), marked("c")]),
            user([result("2", "d", cache_control=SHORT), result("1", "e")]),
        ]
    ).conversation.turns
    assert turns[2].blocks == (
        ToolResult("1", "Read", "e"),
        ToolResult("2", "Read", "d", marks=(Mark(1, 300),)),
    )
    assert turns[3].blocks == (Text("b\n\nc", (Mark(4, 300),)),)


def test_a_mark_of_a_document_or_a_search_result_is_at_the_end_of_its_text() -> None:
    (turn,) = prepared(
        messages=[
            user(
                [
                    document([marked("a", LONG), text("b")], title="T", cache_control=SHORT),
                    found("t", text("c"), cache_control=SHORT),
                    text("d"),
                ]
            )
        ]
    ).conversation.turns
    assert turn.blocks == (
        Text("T\na\n\nb\n\nt\ns\nc\n\nd", (Mark(3, 3600), Mark(6, 300), Mark(13, 300))),
    )


def test_a_result_of_nothing_may_be_marked() -> None:
    turns = prepared(
        messages=[user("a"), assistant([call("1")]), user([result("1", [], cache_control=SHORT)])]
    ).conversation.turns
    assert turns[2].blocks == (ToolResult("1", "Read", "", marks=(Mark(0, 300),)),)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [tool("now"), tool("later", defer_loading=True, cache_control=SHORT)]},
        {"messages": [user([{"type": "compaction", "cache_control": SHORT}, text("a")])]},
        {"system": [marked(ATTRIBUTION), text("a")]},
    ],
)
def test_a_marker_on_what_the_model_is_not_shown_marks_nothing_where_nothing_is_before(
    fields: dict[str, Any],
) -> None:
    assert marks(**fields) == []


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"system": [text("a"), marked(ATTRIBUTION)]}, "a"),
        ({"system": [text("a"), marked(COUNTER), text("b")]}, "a"),
        ({"system": [text("a"), marked(f"\n{ATTRIBUTION}\n{COUNTER}")]}, "a"),
        ({"tools": [tool("t")], "system": [marked(ATTRIBUTION), text("a")]}, "t"),
        (
            {
                "tools": [tool("t"), tool("u", defer_loading=True)],
                "messages": [system([marked(ATTRIBUTION)]), user("a")],
            },
            "t",
        ),
        ({"messages": [user("a"), system([marked(ATTRIBUTION)])]}, "a"),
        ({"messages": [user("a"), system([marked(ATTRIBUTION)]), user("b")]}, "a"),
        ({"messages": [user("a"), system([marked(ATTRIBUTION), text("b")])]}, "a"),
        ({"messages": [user("a"), assistant("b"), user([EMPTY_DOCUMENT, text("c")])]}, "b"),
        ({"messages": [user([text("a"), EMPTY_DOCUMENT])]}, "a"),
        ({"messages": [user([text("a"), EMPTY_DOCUMENT, text("b")])]}, "a"),
        ({"messages": [user([text("a"), document([], cache_control=SHORT)])]}, "a"),
        ({"messages": [user([text("a"), document([text("")], cache_control=SHORT)])]}, "a"),
        (
            {"messages": [user("a"), assistant([call("1"), WEB_RESULT]), user([result("1", "b")])]},
            "1",
        ),
        (
            {
                "messages": [
                    user("a"),
                    assistant([call("1"), call("2")]),
                    user([result("2", "c"), result("1", "b"), EMPTY_DOCUMENT]),
                ]
            },
            "c",
        ),
        (
            {
                "messages": [
                    user("a"),
                    assistant([call("1")]),
                    system([marked(ATTRIBUTION)]),
                    user([result("1", "b")]),
                ]
            },
            "b",
        ),
        (
            {
                "messages": [
                    user("a"),
                    assistant([call("1")]),
                    user([result("1", [text("b"), EMPTY_DOCUMENT, text("c")])]),
                ]
            },
            "b",
        ),
        ({"messages": [user("a"), assistant([WEB_RESULT]), user("b")]}, "a"),
        ({"messages": [user("a"), assistant([text("b"), WEB_RESULT]), user("c")]}, "b"),
        ({"messages": [user("a"), assistant([thought("b"), WEB_RESULT]), user("c")]}, "a"),
        (
            {
                "messages": [
                    user("a"),
                    assistant([{"type": "compaction", "cache_control": SHORT}]),
                    user("b"),
                ]
            },
            "a",
        ),
        (
            {
                "tools": [tool("t"), tool("u", defer_loading=True)],
                "messages": [
                    user("a"),
                    system(
                        [
                            {
                                "type": "tool_addition",
                                "tool": {"type": "tool_reference", "name": "u"},
                                "cache_control": SHORT,
                            }
                        ]
                    ),
                ],
            },
            "a",
        ),
    ],
)
def test_a_marker_on_what_the_model_is_not_shown_marks_the_end_of_what_was_said_before(
    fields: dict[str, Any], kept: str
) -> None:
    assert marks(**fields) == [(kept, 300)]


def test_what_only_a_marker_is_left_of_makes_no_turn() -> None:
    history = [user("a"), system([marked(ATTRIBUTION)]), user("b")]
    (turn,) = prepared(messages=history).conversation.turns
    assert turn.blocks == (Text("a\n\nb", (Mark(1, 300),)),)


def test_of_two_markers_that_fall_together_the_longer_counts() -> None:
    calls = [call("1") | {"cache_control": LONG}, WEB_RESULT]
    messages = [user("a"), assistant(calls), user([result("1", "b")])]
    assert marks(messages=messages) == [("1", 3600)]
    tools = [tool("t", cache_control=LONG)]
    assert marks(tools=tools, system=[marked(ATTRIBUTION)]) == [("t", 3600)]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"messages": [user("a")]}, "a"),
        ({"messages": [user([text("a"), text("b")])]}, "b"),
        ({"messages": [user([text("a"), text(" ")])]}, "a"),
        ({"messages": [user("a"), system([]), system("b")]}, "b"),
        ({"messages": [user("a"), assistant([text("b"), thought("c")]), user([text("d")])]}, "d"),
        ({"messages": [user("a"), system("b"), assistant([thought("c")]), user(" ")]}, "b"),
        ({"messages": [user("a"), assistant([call("1")]), user([result("1", "b")])]}, "b"),
        ({"messages": [user("a"), assistant([call("1")]), user([result("1")])]}, ""),
        ({"messages": [user("a"), assistant("b"), user([document("c")])]}, "c"),
        ({"messages": [user("a"), assistant("")]}, "a"),
        ({"system": "s", "messages": [assistant(""), user(" ")]}, "s"),
        ({"system": " ", "tools": [tool("t"), tool("u", defer_loading=True)]}, "hi"),
        ({"tools": [tool("t"), tool("u", defer_loading=True)], "messages": [user(" ")]}, "t"),
        ({"messages": [user(" ")]}, None),
        ({"messages": [user("a"), system(ATTRIBUTION)]}, "a"),
        ({"messages": [user([text("a"), document([])])]}, "a"),
        ({"messages": [user("a"), assistant([UPLOAD])]}, "a"),
        ({"system": [text("s"), text(ATTRIBUTION)], "messages": [user(" ")]}, "s"),
    ],
)
def test_a_marker_of_the_request_marks_the_last_block_that_may_have_one(
    fields: dict[str, Any], kept: str | None
) -> None:
    expected = [] if kept is None else [(kept, 3600)]
    assert marks(**fields, cache_control=LONG) == expected


def test_a_marker_of_the_request_adds_nothing_to_one_that_is_there() -> None:
    blocks = [marked("a"), marked("b"), marked("c"), marked("d")]
    expected = [("a", 300), ("b", 300), ("c", 300), ("d", 300)]
    assert marks(messages=[user(blocks)], cache_control=SHORT) == expected
    assert marks(messages=[user(blocks)], cache_control={**SHORT, "ttl": "5m"}) == expected


def test_a_marker_of_the_request_counts_as_one_of_four() -> None:
    fields: dict[str, Any] = {"system": [marked("a"), marked("b"), marked("c")]}
    assert len(marks(**fields, cache_control=SHORT)) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ({"type": "persistent"}, "type: Input should be 'ephemeral'"),
        ({"type": "ephemeral", "ttl": "2h"}, "ttl: Input should be '5m' or '1h'"),
        ({"ttl": "5m"}, "type: Field required"),
    ],
)
def test_an_unknown_marker_is_refused_by_its_path(
    marker: dict[str, Any], message: str, kind: type[BaseRequest]
) -> None:
    assert refusal(kind, cache_control=marker).message == f"cache_control.{message}"
    assert (
        refusal(kind, tools=[tool(cache_control=marker)]).message
        == f"tools.0.cache_control.{message}"
    )
    answered = [user("a"), assistant([call("1")]), user([result("1", [marked("x", marker)])])]
    assert (
        refusal(kind, messages=answered).message
        == f"messages.2.content.0.content.0.cache_control.{message}"
    )

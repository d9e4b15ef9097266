"""Searches in the history of a request, and what is shown of the tools that were found."""

from typing import Any

import pytest

from models.conversation import ToolCall, ToolResult
from models.engine.protocol import ids_of
from models.families.family import PreparedPrompt
from service.requests.context_editing import edited
from service.requests.prepare import Prepared
from tests.service.requests.served import (
    assistant,
    call,
    prepared,
    refusal,
    result,
    text,
    tool,
    user,
)

REGEX = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
BM25 = {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"}
LATE = tool("late", description="Comes late.", defer_loading=True)
DEFINED = (
    '{"type":"function","function":{"name":"late","description":"Comes late.",'
    '"parameters":{"type":"object"}}}'
)
TOOLS = [REGEX, tool("Read"), LATE]


def search(id: str, query: str = "l") -> dict[str, Any]:
    return {
        "type": "server_tool_use",
        "id": id,
        "name": "tool_search_tool_regex",
        "input": {"query": query},
    }


def reference(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "tool_name": name}


def found(id: str, *names: str) -> dict[str, Any]:
    return {
        "type": "tool_search_tool_result",
        "tool_use_id": id,
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [reference(each) for each in names],
        },
    }


def asked(*content: Any, more: Any = "on", tools: Any = TOOLS, **fields: Any) -> Prepared:
    messages = [user("a"), assistant([*content]), user(more)]
    return prepared(messages=messages, tools=tools, **fields)


def shape(of: Prepared) -> list[tuple[str, list[str]]]:
    """Role and blocks of each turn, calls and results by their ids."""
    return [
        (
            turn.role,
            [
                each.id
                if isinstance(each, ToolCall)
                else f"={each.call_id}"
                if isinstance(each, ToolResult)
                else each.text
                for each in turn.blocks
            ],
        )
        for turn in of.conversation.turns[1:]
    ]


def results(of: Prepared) -> list[ToolResult]:
    blocks = (each for turn in of.conversation.turns for each in turn.blocks)
    return [each for each in blocks if isinstance(each, ToolResult)]


def tools_of(of: Prepared) -> list[tuple[str, bool]]:
    return [(each.name, each.is_found) for each in of.conversation.form.tools]


@pytest.mark.parametrize("wire", [REGEX, BM25])
def test_a_search_tool_takes_a_query_and_finds_those_that_are_deferred(
    wire: dict[str, Any],
) -> None:
    of = prepared(tools=[wire, tool("Read"), LATE])
    shown = of.conversation.form.tools
    assert [(each.name, each.on_server) for each in shown] == [
        (wire["name"], True),
        ("Read", False),
    ]
    assert list(shown[0].schema["properties"]) == ["query"]
    assert [each.name for each in of.findable] == ["late"]


def test_without_a_search_tool_nothing_is_searched() -> None:
    assert prepared(tools=[tool("Read"), LATE]).findable == ()


def test_what_was_said_after_a_search_is_a_turn_of_its_own() -> None:
    of = asked(
        text("Hm."), search("s1"), found("s1", "late"), text("So."), search("s2"), found("s2")
    )
    assert shape(of) == [
        ("assistant", ["Hm.", "s1"]),
        ("user", ["=s1"]),
        ("assistant", ["So.", "s2"]),
        ("user", ["=s2", "on"]),
    ]


def test_results_of_searches_and_calls_stand_in_the_order_of_their_calls() -> None:
    parallel = [search("s1"), call("c", "Read"), search("s2"), found("s2"), found("s1")]
    expected = [("assistant", ["s1", "c", "s2"]), ("user", ["=s1", "=c", "=s2", "x"])]
    assert shape(asked(*parallel, more=[result("c"), text("x")])) == expected


def test_a_message_that_ends_with_a_search_is_gone_on_from() -> None:
    of = prepared(messages=[user("a"), assistant([search("s"), found("s")])], tools=TOOLS)
    assert shape(of) == [("assistant", ["s"]), ("user", ["=s"])]
    assert not of.conversation.prefills


def test_a_tool_that_was_found_is_defined_where_it_was_found_and_nowhere_else() -> None:
    of = asked(search("s"), found("s", "late"))
    assert tools_of(of) == [("tool_search_tool_regex", False), ("Read", False), ("late", True)]
    assert [each.name for each in of.conversation.form.listed_tools][1:] == ["Read"]
    [told] = results(of)
    assert told.text == DEFINED
    assert told.defines_tools
    by_client = asked(call("c", "Read"), more=[result("c", [reference("late"), text("one")])])
    [told] = results(by_client)
    assert told.text == f"{DEFINED}\n\none"
    assert told.defines_tools
    assert tools_of(by_client)[-1] == ("late", True)


def test_a_tool_that_vanished_or_is_listed_is_referred_to_by_name() -> None:
    of = asked(search("s"), found("s", "gone", "Read"))
    assert results(of)[0].text == "Tool: gone\nTool: Read"
    assert tools_of(of) == [("tool_search_tool_regex", False), ("Read", False)]


def test_a_search_is_understood_without_its_tool() -> None:
    of = asked(search("s"), found("s", "late"), tools=[])
    assert results(of)[0].text == "Tool: late"


def test_a_failed_search_says_why() -> None:
    error = {
        "type": "tool_search_tool_result_error",
        "error_code": "invalid_tool_input",
        "error_message": "missing )",
    }
    failed = {"type": "tool_search_tool_result", "tool_use_id": "s", "content": error}
    [told] = results(asked(search("s"), failed))
    assert (told.text, told.is_error) == ("missing )", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [search("s"), text("x")],
            "messages.1.content.0: tool_use ids were found without tool_result blocks"
            " immediately after: s",
        ),
        (
            [found("s")],
            "messages.1.content.0.tool_use_id: unexpected tool_use_id s: a"
            " tool_search_tool_result must have its tool_use in the assistant message before it",
        ),
        (
            [search("s"), found("s"), found("s")],
            "messages.1.content.2.tool_use_id: each tool_use must have a single result, and s has"
            " one already",
        ),
    ],
)
def test_searches_and_results_that_do_not_fit_are_refused_by_place(
    content: list[Any], message: str
) -> None:
    messages = [user("a"), assistant(content), user("b"), assistant("c"), user("d")]
    assert refusal(messages=messages, tools=TOOLS).message == message


def test_other_searches_of_the_first_party_are_left_out() -> None:
    foreign = {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {}}
    of = asked(foreign, {"type": "web_search_tool_result", "tool_use_id": "w", "content": []})
    assert "messages.server_tool_use" in of.ignored


def test_some_tool_must_be_there_to_find_the_others() -> None:
    assert refusal(tools=[LATE]).message.startswith("tools: at least one tool must not")


def test_the_definitions_of_tools_are_not_cleared() -> None:
    of = asked(
        search("s"),
        found("s", "late"),
        call("c", "Read"),
        more=[result("c", "x" * 50)],
        context_management={
            "edits": [
                {
                    "type": "clear_tool_uses_20250919",
                    "trigger": {"type": "tool_uses", "value": 1},
                    "keep": {"type": "tool_uses", "value": 0},
                }
            ]
        },
    )

    def render(conversation: Any) -> PreparedPrompt:
        texts = (each.text for turn in conversation.turns for each in results_in(turn))
        return PreparedPrompt(ids_of([0] * sum(map(len, texts))))

    made = edited(of.conversation, of.edits or (), render, 1000)
    texts = [each.text for turn in made.conversation.turns for each in results_in(turn)]
    assert texts[0] == DEFINED
    assert "cleared" in texts[1]


def results_in(turn: Any) -> list[ToolResult]:
    return [each for each in turn.blocks if isinstance(each, ToolResult)]

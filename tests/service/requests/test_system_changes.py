"""What system messages change in the course of a conversation: texts for a while, and tools."""

from typing import Any

import pytest

from models.families.family import Family
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from tests.service.requests.served import (
    EPHEMERAL,
    TINY,
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
from tests.service.requests.test_every_family import prompt
from tests.service.requests.test_prefixes import family as family  # a fixture

FOR_NOW = {"clear_at": "next_user_message"}


def said(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    turns = prepared(messages=list(messages), **fields).conversation.turns
    return [(turn.role, turn.text) for turn in turns]


# --- texts for a while -------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["b", [text("b")]])
def test_a_text_for_now_is_shown_until_the_user_says_something(content: Any) -> None:
    note = system(content, **FOR_NOW)
    assert said(user("a"), note) == [("user", "a"), ("system", "b")]
    assert said(user("a"), note, assistant("c")) == [
        ("user", "a"),
        ("system", "b"),
        ("assistant", "c"),
    ]
    assert said(user("a"), note, assistant("c"), user("d")) == [
        ("user", "a"),
        ("assistant", "c"),
        ("user", "d"),
    ]


@pytest.mark.parametrize("clear_at", [None, "never"])
def test_any_other_text_stays(clear_at: Any) -> None:
    note = system("b", clear_at=clear_at)
    assert said(user("a"), note, user("c")) == [("user", "a"), ("system", "b"), ("user", "c")]


def test_results_are_a_user_message_too() -> None:
    note = system("b", **FOR_NOW)
    before = [user("a"), assistant([call("1")])]
    assert ("system", "b") not in said(*before, note, user([result("1", "x")]))
    assert said(*before, user([result("1", "x")]), note)[-1] == ("system", "b")


def test_a_marker_in_a_text_that_is_not_shown_any_more_marks_what_was_said_before() -> None:
    note = system([text("b", cache_control=EPHEMERAL)], **FOR_NOW)
    turns = prepared(messages=[user("a"), note, user("c")]).conversation.turns
    marked = user([text("a", cache_control=EPHEMERAL), text("c")])
    assert turns == prepared(messages=[marked]).conversation.turns


@pytest.mark.anyio
async def test_a_prompt_begins_alike_up_to_where_the_text_was(family: Family) -> None:
    note = system("Be brief, for now.", **FOR_NOW)
    first = [user([text("a long question", cache_control=EPHEMERAL)])]
    asked = await prompt(MessagesRequest, family, messages=[*first, note])
    later = await prompt(
        MessagesRequest, family, messages=[*first, note, assistant("yes"), user("and?"), note]
    )
    (kept,) = asked.boundaries
    assert later.boundaries == asked.boundaries
    assert later.ids[: kept.tokens] == asked.ids[: kept.tokens]
    alone = await prompt(
        MessagesRequest, family, messages=[*first, assistant("yes"), user("and?"), note]
    )
    assert later.ids == alone.ids


# --- tools -------------------------------------------------------------------------------------


def addition(name: str) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def removal(name: str) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def definition(definition: dict[str, Any]) -> dict[str, Any]:
    tool = {"type": "tool_definition", "definition": definition}
    return {"type": "tool_addition", "tool": tool}


BASH = {"type": "bash_20250124", "name": "bash"}
GONE = tool("Gone", description="Says so.")


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ([], ["Read", "Run"]),
        ([addition("Late")], ["Read", "Run", "Late"]),
        ([addition("Read")], ["Read", "Run"]),
        ([removal("Read")], ["Run"]),
        ([removal("Late")], ["Read", "Run"]),
        ([removal("Read"), addition("Read")], ["Read", "Run"]),
        ([addition("Late"), removal("Late")], ["Read", "Run"]),
        ([definition(GONE)], ["Read", "Run", "Gone"]),
        ([definition({**GONE, "defer_loading": True})], ["Read", "Run"]),
        ([definition({**GONE, "defer_loading": True}), addition("Gone")], ["Read", "Run", "Gone"]),
        ([definition(GONE), removal("Gone")], ["Read", "Run"]),
        ([definition(BASH)], ["Read", "Run", "bash"]),
        ([text("Read is off."), removal("Read")], ["Run"]),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_tools_change_from_there_on(changes: list[Any], shown: list[str], apart: bool) -> None:
    blocks = [[each] for each in changes] if apart else [changes]
    messages = [user("a"), *(system(each) for each in blocks), assistant("b"), user("c")]
    tools = [tool("Read"), tool("Late", defer_loading=True), tool("Run")]
    made = prepared(messages=messages, tools=tools).conversation
    assert sorted(each.name for each in made.form.tools) == sorted(shown)
    order = [each.name for each in made.form.tools if each.name in ("Read", "Late", "Run")]
    assert order == [name for name in ("Read", "Late", "Run") if name in shown]


def test_a_new_definition_takes_the_place_of_the_old_one() -> None:
    new = tool("Read", description="Reads better.")
    made = prepared(
        messages=[user("a"), system([definition(new)])], tools=[tool("Read"), tool("Run")]
    )
    assert [(each.name, each.description) for each in made.conversation.form.tools] == [
        ("Read", "Reads better."),
        ("Run", ""),
    ]
    assert made.tool_paths == {"Read": "messages.1.content.0.tool.definition", "Run": "tools.1"}


def test_a_tool_that_is_added_later_may_be_asked_for() -> None:
    changed = [user("a"), system([definition(GONE)])]
    choice = {"type": "tool", "name": "Gone"}
    made = prepared(messages=changed, tool_choice=choice).conversation
    assert [each.name for each in made.form.callable_tools] == ["Gone"]
    withdrawn = [*changed, system([removal("Gone")])]
    assert refusal(messages=withdrawn, tool_choice=choice).message.startswith("tool_choice: there")


def test_tools_stay_changed_when_the_text_beside_is_cleared() -> None:
    note = system([text("Read is off."), removal("Read")], **FOR_NOW)
    made = prepared(messages=[user("a"), note, user("b")], tools=[tool("Read")]).conversation
    assert (made.form.tools, [each.role for each in made.turns]) == ((), ["user"])


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    ("change", "fault", "code"),
    [
        (
            addition("Gone"),
            ".tool.name: no tool is called 'Gone' at this place of the conversation; name one of"
            " `tools`, or add its tool_definition",
            "tool_reference_unresolved",
        ),
        (removal("Gone"), ".tool.name: no tool is called 'Gone'", "tool_reference_unresolved"),
        (
            {
                "type": "tool_removal",
                "tool": {"type": "mcp_toolset_reference", "server_name": "docs"},
            },
            ".tool.type: 'mcp_toolset_reference' refers to an MCP server, and none is called here",
            "tool_reference_unresolved",
        ),
        (
            definition(tool("bash")),
            ".tool.definition.name: tools.1 is a tool of another kind that is called 'bash', too",
            "tool_name_conflict",
        ),
        (
            definition({**GONE, "allowed_callers": ["code_execution_20250825"]}),
            ".tool.definition.allowed_callers: code execution is not supported",
            None,
        ),
        (definition({"name": "x"}), ".tool.definition.input_schema: Field required", None),
        (definition({"type": "mcp_toolset"}), ".tool.definition.type: 'mcp_toolset' would", None),
        (
            {"type": "tool_removal", "tool": {"type": "tool_definition", "definition": GONE}},
            ".tool.type: Input should be 'tool_reference', 'mcp_tool_reference' or",
            None,
        ),
        ({"type": "tool_addition"}, ".tool: Field required", None),
        ({"type": "tool_addition", "tool": {"type": "x"}}, ".tool.type: Input should be", None),
    ],
)
def test_changes_that_cannot_be_are_refused_by_place_and_code(
    change: dict[str, Any], fault: str, code: str | None, kind: type[BaseRequest]
) -> None:
    messages = [user("a"), system([text("b"), change])]
    refused = refusal(kind, messages=messages, tools=[tool("Read"), BASH])
    assert refused.message.startswith(f"messages.1.content.1{fault}")
    assert refused.code == code


def test_a_tool_is_not_there_before_it_is_defined() -> None:
    messages = [user("a"), system([addition("Gone")]), user("b"), system([definition(GONE)])]
    assert refusal(messages=messages).code == "tool_reference_unresolved"


def test_another_kind_may_have_the_name_of_what_was_removed() -> None:
    messages = [user("a"), system([removal("bash")]), user("b"), system([definition(tool("bash"))])]
    (shown,) = prepared(messages=messages, tools=[BASH]).conversation.form.tools
    assert (shown.name, shown.description) == ("bash", "")


def test_a_model_without_tools_refuses_a_new_one_by_its_place() -> None:
    messages = [user("a"), system([definition(GONE)])]
    assert refusal(served=TINY, messages=messages).message.startswith(
        "messages.1.content.0.tool.definition: tool use is not supported by tiny"
    )


def test_a_marker_of_the_request_goes_to_what_the_model_is_shown_last() -> None:
    changes = [user("a"), system([addition("Read")])]
    made = prepared(messages=changes, tools=[tool("Read")], cache_control=EPHEMERAL).conversation
    plain = [user([text("a", cache_control=EPHEMERAL)]), system([addition("Read")])]
    assert made == prepared(messages=plain, tools=[tool("Read")]).conversation


@pytest.mark.anyio
async def test_a_late_tool_is_written_as_if_it_had_always_been_there(family: Family) -> None:
    if not family.capabilities.tools:
        return
    late = [user("a"), system([addition("Late")])]
    tools = [tool("Read"), tool("Late", defer_loading=True)]
    made = await prompt(MessagesRequest, family, messages=late, tools=tools)
    always = await prompt(
        MessagesRequest, family, messages=[user("a")], tools=[tool("Read"), tool("Late")]
    )
    assert made.ids == always.ids
    without = await prompt(MessagesRequest, family, messages=[user("a")], tools=tools)
    assert without.ids != made.ids

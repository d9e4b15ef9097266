"""Requests for a summary, and conversations in the place of which there is one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.conversation import Text, ToolCall, ToolChoice, ToolResult
from models.families.family import Family
from service.requests.summaries import SummaryPlan, as_told
from service.signatures import Foreign, Genuine, Signer
from service.wire.requests import CountTokensRequest, MessagesRequest
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
from tests.service.requests.test_every_family import prompt
from tests.service.requests.test_prefixes import family as family  # a fixture

SUMMARIZE: dict[str, Any] = {"type": "summarize"}
FORMAT: dict[str, Any] = {"type": "json_schema", "schema": {}}
NOTHING_SAID: dict[str, Any] = {"type": "compaction", "content": None}


def summary(says: str = "So far: x.", *changes: Any, in_place: bool = False) -> dict[str, Any]:
    return SummaryPlan(changes, in_place).block(says, SIGNER)


def asked(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    turns = prepared(messages=list(messages), **fields).conversation.turns
    return [(turn.role, turn.text) for turn in turns]


def code_of(*messages: dict[str, Any], **fields: Any) -> str | None:
    return refusal(messages=list(messages), **fields).code


# --- asking for a summary ----------------------------------------------------------------------


def test_the_task_is_what_the_user_says_last() -> None:
    compaction = {"type": "summarize", "instructions": "Sum it up."}
    assert asked(user("a"), assistant("b"), user("c"), compaction=compaction) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c\n\nSum it up."),
    ]
    assert asked(user("a"), assistant("b"), compaction=compaction)[-2:] == [
        ("assistant", "b"),
        ("user", "Sum it up."),
    ]
    assert asked(user("a"), system("b"), compaction=compaction)[-2:] == [
        ("system", "b"),
        ("user", "Sum it up."),
    ]


@pytest.mark.parametrize("instructions", [None, "", " \n"])
def test_blank_instructions_are_none(instructions: str | None) -> None:
    ours = asked(user("a"), compaction=SUMMARIZE)
    assert asked(user("a"), compaction={**SUMMARIZE, "instructions": instructions}) == ours
    assert "Write a summary" in ours[0][1]


def test_results_may_be_the_last_that_is_summarised() -> None:
    messages = [user("a"), assistant([call("1")]), user([result("1", "r")])]
    last = prepared(messages=messages, compaction=SUMMARIZE).conversation.turns[-1]
    assert last.blocks[0] == ToolResult("1", "Read", "r")
    assert isinstance(last.blocks[1], Text)


def test_tools_are_told_of_and_cannot_be_called() -> None:
    form = prepared(tools=[tool()], compaction=SUMMARIZE).conversation.form
    assert [each.name for each in form.tools] == ["Read"]
    assert form.choice == ToolChoice("none")


@pytest.mark.anyio
async def test_the_prompt_begins_as_that_of_an_answer_does(family: Family) -> None:
    fields: dict[str, Any] = {"system": "s", "thinking": {"type": "adaptive"}}
    if family.capabilities.tools:
        fields["tools"] = [tool()]

    async def ids(said: str, **more: Any) -> list[int]:
        messages = [user("a"), assistant("b"), user(said)]
        return (
            await prompt(MessagesRequest, family, messages=messages, **fields, **more)
        ).ids.tolist()

    plain, other = await ids("c"), await ids("d")
    said = next(place for place, each in enumerate(plain) if each != other[place])
    assert (await ids("c", compaction=SUMMARIZE))[: said + 1] == plain[: said + 1]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("context_management", {"context_management": {}}),
        ("stop_sequences", {"stop_sequences": ["x"]}),
        ("output_config.format", {"output_config": {"format": FORMAT}}),
        ("tool_choice", {"tool_choice": {"type": "any"}, "tools": [tool()]}),
        ("tool_choice", {"tool_choice": {"type": "tool", "name": "Read"}, "tools": [tool()]}),
    ],
)
def test_what_shapes_an_answer_is_refused_by_name(path: str, fields: dict[str, Any]) -> None:
    message = refusal(compaction=SUMMARIZE, **fields).message
    assert message.startswith(f"{path}: it cannot be combined with compaction")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "auto"}, "tools": [tool()]},
        {"tool_choice": {"type": "none"}},
        {"output_config": {"effort": "low"}},
        {"stop_sequences": []},
        {"thinking": {"type": "adaptive"}},
    ],
)
def test_what_shapes_the_prompt_alone_may_stay(fields: dict[str, Any]) -> None:
    assert prepared(compaction=SUMMARIZE, **fields).summary == SummaryPlan()


@pytest.mark.parametrize(
    "messages",
    [
        [user("")],
        [user([text("")]), assistant([])],
        [system("only this")],
        [assistant([NOTHING_SAID])],
    ],
)
def test_an_empty_conversation_cannot_be_summarised(messages: list[Any]) -> None:
    assert code_of(*messages, compaction=SUMMARIZE) == "compaction_nothing_to_summarize"


def test_a_summary_can_be_summarised_again() -> None:
    assert asked(assistant([summary()]), compaction=SUMMARIZE)[0][1].startswith(
        as_told("So far"[:0])[:20]
    )


def test_a_turn_that_waits_for_results_cannot_be_summarised() -> None:
    pending = [user("a"), assistant([text("b"), call("1"), call("2")])]
    fault = refusal(messages=pending, compaction=SUMMARIZE)
    assert fault.code == "compaction_incomplete_turn"
    assert fault.message.startswith("messages.1.content.1: tool_use ids were found without")
    assert code_of(*pending) is None


def test_a_finished_answer_may_end_with_anything() -> None:
    thought = {"type": "thinking", "thinking": "t", "signature": SIGNER.sign("t", "able", "m", 0)}
    assert asked(user("a"), assistant([thought]), compaction=SUMMARIZE)[-1][0] == "user"


def test_counting_is_of_the_conversation_as_it_is() -> None:
    counted = prepared(CountTokensRequest, compaction={**SUMMARIZE, "instructions": "x"})
    assert counted.ignored == ("compaction",)
    assert counted.conversation == prepared().conversation


# --- a summary in the place of messages --------------------------------------------------------


def test_a_summary_is_what_the_user_says_first() -> None:
    told = as_told("So far: x.")
    assert asked(assistant([summary()]), user("go"), system="s") == [
        ("system", "s"),
        ("user", f"{told}\n\ngo"),
    ]
    assert asked(user([summary(), text("go")])) == [("user", f"{told}\n\ngo")]
    assert asked(assistant([summary()])) == [("user", told)]
    assert asked(assistant([summary(), text("b")]), user("go")) == [
        ("user", told),
        ("assistant", "b"),
        ("user", "go"),
    ]


def test_calls_and_results_may_follow_a_summary() -> None:
    messages = [assistant([summary(), call("1")]), user([result("1", "r")])]
    _, calling, answered = prepared(messages=messages).conversation.turns
    assert calling.blocks == (ToolCall("1", "Read", {}),)
    assert answered.blocks == (ToolResult("1", "Read", "r"),)


def test_a_summary_can_end_what_is_kept() -> None:
    block = {**summary(), "cache_control": EPHEMERAL}
    first = prepared(messages=[assistant([block]), user("go")]).conversation.turns[0].blocks[0]
    assert isinstance(first, Text)
    assert [each.characters for each in first.marks] == [len(as_told("So far: x."))]


def test_one_that_failed_says_nothing() -> None:
    nothing = assistant([NOTHING_SAID])
    assert asked(user("a"), nothing, user("b")) == [("user", "a\n\nb")]
    assert asked(user("a"), assistant([NOTHING_SAID, text("c")]), user("b")) == [
        ("user", "a"),
        ("assistant", "c"),
        ("user", "b"),
    ]


def test_what_was_said_before_a_summary_of_an_answers_own_is_out_of_use() -> None:
    old, new = summary("old", in_place=True), summary("new", in_place=True)
    messages = [
        user(f"{'a' * 9}"),
        assistant([old, text("b")]),
        user("c"),
        assistant([new, text("d")]),
    ]
    assert asked(*messages, user("e"), system="s") == [
        ("system", "s"),
        ("user", as_told("new")),
        ("assistant", "d"),
        ("user", "e"),
    ]
    assert asked(assistant([summary("first")]), *messages[:1], *messages[2:], user("e"))[0] == (
        "user",
        as_told("new"),
    )


def test_paths_stay_those_of_the_request() -> None:
    block = summary(in_place=True)
    fault = refusal(messages=[user("a"), assistant([block, call("1")]), user("c"), user("d")])
    assert fault.message.startswith("messages.1.content.1: ")


@pytest.mark.parametrize(
    ("code", "messages"),
    [
        ("misplaced", [user("a"), assistant([summary()]), user("b")]),
        ("misplaced", [assistant([text("a"), summary()]), user("b")]),
        ("misplaced", [user("a"), assistant([text("x"), summary(in_place=True)]), user("b")]),
        ("misplaced", [system([summary()]), user("b")]),
        ("ambiguous", [assistant([summary()]), user("b"), assistant([summary()])]),
        ("ambiguous", [assistant([summary(), summary()])]),
        ("ambiguous", [assistant([summary(in_place=True)]), user("b"), assistant([summary()])]),
    ],
)
def test_a_summary_in_a_wrong_place_is_refused(code: str, messages: list[Any]) -> None:
    assert code_of(*messages) == f"compaction_block_{code}"


MORE = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Read"}}


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("compaction_content_mismatch", {"content": "So far: y."}),
        ("compaction_tool_changes_mismatch", {"tool_changes": [MORE]}),
        ("compaction_signature_invalid", {"signature": None}),
        ("compaction_signature_invalid", {"signature": "x"}),
        ("compaction_signature_invalid", {"signature": SIGNER.sign("So far: x.", "m", "m", 0)}),
        ("compaction_signature_invalid", {"signature": summary("x")["signature"][:-1]}),
        ("compaction_signature_invalid", SummaryPlan().block("So far: x.", Signer(b"o" * 32))),
    ],
)  # fmt: skip
def test_a_summary_that_was_changed_is_refused(code: str, changed: dict[str, Any]) -> None:
    fault = refusal(messages=[assistant([{**summary(), **changed}]), user("go")])
    assert fault.code == code
    assert fault.message.startswith("messages.0.content.0.")


def test_an_empty_summary_is_none() -> None:
    message = refusal(messages=[assistant([{**summary(), "content": ""}])]).message
    assert message.startswith("messages.0.content.0.content: String should have at least 1 char")


@given(st.text(min_size=1), st.booleans(), st.text())
def test_a_seal_holds_for_one_summary_only(says: str, in_place: bool, other: str) -> None:
    signature = SummaryPlan((), in_place).block(says, SIGNER)["signature"]
    assert SIGNER.unsealed(signature) is not None
    assert not isinstance(SIGNER.check(says, signature), Genuine | Foreign)
    assert SIGNER.unsealed(SIGNER.sign(says, "m", "m", 0)) is None
    assert SIGNER.unsealed(other) is None
    if other:
        assert SIGNER.unsealed(signature + other) is None


# --- its tools ---------------------------------------------------------------------------------


def addition(name: str) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def removal(name: str) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def definition(name: str, **fields: Any) -> dict[str, Any]:
    defined = {"type": "tool_definition", "definition": tool(name, **fields)}
    return {"type": "tool_addition", "tool": defined}


GIVEN = [tool("Read"), tool("Late", defer_loading=True), tool("Later", defer_loading=True)]
FOUND = {"type": "tool_reference", "tool_name": "Later"}


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        ([], []),
        ([addition("Late"), removal("Late")], []),
        ([removal("Read"), addition("Read")], []),
        ([removal("Read"), addition("Late")], [removal("Read"), addition("Late")]),
        ([definition("New", description=None)], [definition("New", description=None)]),
        ([definition("New"), removal("New")], [definition("New"), removal("New")]),
        ([definition("Read", description="new")], [definition("Read", description="new")]),
        ([definition("New", defer_loading=True)], [definition("New", defer_loading=True)]),
    ],
)
def test_a_summary_has_the_changes_of_tools(changes: list[Any], recorded: list[Any]) -> None:
    messages = [user("a"), *(system([each]) for each in changes)]
    asking = prepared(messages=messages, tools=GIVEN, compaction=SUMMARIZE)
    assert asking.summary is not None
    assert asking.summary.tool_changes == tuple(recorded)
    block = asking.summary.block("So far: x.", SIGNER)
    after = prepared(messages=[assistant([block]), user("b")], tools=GIVEN)
    shown = [each.name for each in after.conversation.form.tools]
    assert sorted(shown) == sorted(each.name for each in asking.conversation.form.tools)
    again = prepared(messages=[assistant([block])], tools=GIVEN, compaction=SUMMARIZE)
    assert again.summary == asking.summary


def test_tools_that_were_found_stay_so() -> None:
    messages = [user("a"), assistant([call("1")]), user([result("1", [FOUND])])]
    asking = prepared(messages=messages, tools=GIVEN, compaction=SUMMARIZE).summary
    assert asking is not None
    assert asking.tool_changes == (addition("Later"),)


def test_tool_changes_may_come_back_in_another_order_and_without_nulls() -> None:
    block = summary("x", definition("New", description=None, strict=False))
    (change,) = block["tool_changes"]
    defined = change["tool"]["definition"]
    sent = dict(reversed([each for each in defined.items() if each[1] is not None]))
    block["tool_changes"] = [
        {"tool": {"definition": sent, "type": "tool_definition"}, "type": "tool_addition"}
    ]
    form = prepared(messages=[assistant([block]), user("b")]).conversation.form
    assert [each.name for each in form.tools] == ["New"]


def test_a_change_of_a_tool_that_vanished_is_refused_with_its_path() -> None:
    fault = refusal(messages=[assistant([summary("x", addition("Late"))]), user("b")])
    assert fault.code == "tool_reference_unresolved"
    assert fault.message.startswith("messages.0.content.0.tool_changes.0.tool.name: ")


def test_there_is_an_end_to_what_a_summary_records() -> None:
    tools = [tool(f"t{number}", defer_loading=True) for number in range(1001)]
    messages = [user("a"), system([addition(each["name"]) for each in tools])]
    tools.append(tool("first"))
    code = code_of(*messages, tools=tools, compaction=SUMMARIZE)
    assert code == "compaction_too_many_tool_references"
    messages[1] = system([addition(each["name"]) for each in tools[1:-1]])
    assert prepared(messages=messages, tools=tools, compaction=SUMMARIZE).summary is not None

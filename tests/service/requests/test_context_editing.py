"""What edits clear from prompts, and all that they leave as it is."""

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.conversation import Conversation, Text, Thinking, ToolCall, ToolResult, Turn
from models.families.family import Family, PreparedPrompt
from service.requests.context_editing import CLEARED, Edit, Edited, edited
from service.wire.context_edits import ClearThinking, ClearToolUses
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from tests.service.requests.served import (
    EPHEMERAL,
    SIGNER,
    assistant,
    call,
    refusal,
    result,
    system,
    text,
    tool,
    user,
)
from tests.service.requests.test_every_family import prompt
from tests.service.requests.test_prefixes import family as family  # a fixture

USES = "clear_tool_uses_20250919"
THOUGHTS = "clear_thinking_20251015"
LONG = "a long line of a file\n" * 10


def tool_uses(value: int) -> dict[str, Any]:
    return {"type": "tool_uses", "value": value}


def input_tokens(value: int) -> dict[str, Any]:
    return {"type": "input_tokens", "value": value}


def editing(*edits: dict[str, Any]) -> dict[str, Any]:
    return {"context_management": {"edits": list(edits)}}


def uses(**more: Any) -> dict[str, Any]:
    """An edit that is always due."""
    return {"type": USES, "trigger": tool_uses(0), **more}


def thought(said: str, message: str = "msg_1") -> dict[str, Any]:
    signature = SIGNER.sign(said, "tiny", message, 0)
    return {"type": "thinking", "thinking": said, "signature": signature}


def session(calls: int) -> list[dict[str, Any]]:
    """Each question has a call, its result and an answer."""
    return [
        each
        for n in range(calls)
        for each in (
            user(f"question {n}"),
            assistant([thought(f"thought {n}", f"msg_{n}"), call(f"call_{n}", path=f"file {n}")]),
            user([result(f"call_{n}", f"{LONG} of {n}")]),
            assistant(f"answer {n}"),
        )
    ] + [user("the last question")]


# --- what is rendered, in every family ---------------------------------------------------------


@pytest.mark.anyio
async def test_every_family_writes_what_edits_leave(family: Family) -> None:
    kinds = {"thinking": {"type": "adaptive"}} if family.capabilities.thinking else {}
    tools = {"tools": [tool("Read")]} if family.capabilities.tools else {}
    asked: dict[str, Any] = {"messages": session(5), **kinds, **tools}
    plain = await prompt(MessagesRequest, family, **asked)
    edits = editing({"type": THOUGHTS}, uses(keep=tool_uses(2), clear_tool_inputs=True))
    made = await prompt(MessagesRequest, family, **asked, **edits)
    assert await prompt(CountTokensRequest, family, **asked, **edits) == made
    assert made.original_tokens == len(plain.ids)
    assert made.plan.edits is not None
    *others, cleared = made.plan.edits
    assert (cleared.kind, cleared.cleared) == (USES, 3)
    # A family that never shows earlier thinking has none to clear.
    assert [(each.kind, each.cleared) for each in others] in ([], [(THOUGHTS, 4)])
    assert bool(others) == _shows_thinking(family)
    fewer = sum(each.cleared_input_tokens for each in made.plan.edits)
    assert len(made.ids) == len(plain.ids) - fewer


def _shows_thinking(family: Family) -> bool:
    def length(*blocks: Any) -> int:
        turns = (Turn.of("user", "a"), Turn("assistant", blocks), Turn.of("user", "b"))
        return len(family.render(Conversation(turns)).ids)

    return length(Thinking("hm" * 50), Text("x")) > length(Text("x"))


@pytest.mark.anyio
async def test_a_prompt_that_is_edited_begins_the_next(family: Family) -> None:
    """As long as nothing more is cleared."""
    edits = editing({"type": THOUGHTS, "keep": "all"}, uses(keep=tool_uses(2)))
    before = session(4)[:-1]
    first = await prompt(MessagesRequest, family, messages=[*before, user("go on")], **edits)
    more = [user("go on"), assistant("well"), user("and on")]
    second = await prompt(MessagesRequest, family, messages=[*before, *more], **edits)
    assert first.plan.edits
    assert second.plan.edits
    assert len(_common(first.ids.tolist(), second.ids.tolist())) > len(first.ids) * 0.9


def _common(one: list[int], other: list[int]) -> list[int]:
    place = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return one[:place]


@pytest.mark.anyio
async def test_a_mark_on_a_cleared_result_stays_at_its_end(family: Family) -> None:
    def asked(answer: str, whole: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
        marked = result("1", [text(LONG, **inner), text(LONG)], **whole)
        said = [user("a"), assistant([call("1")]), user([marked]), assistant(answer), user("c")]
        return {"messages": said}

    edits, mark = editing(uses(keep=tool_uses(0))), {"cache_control": EPHEMERAL}
    plain = await prompt(MessagesRequest, family, **asked("yes", {}, {}), **edits)
    whole = await prompt(MessagesRequest, family, **asked("yes", {}, {}))
    for marks in ((mark, {}), ({}, mark)):
        made = await prompt(MessagesRequest, family, **asked("yes", *marks), **edits)
        other = await prompt(MessagesRequest, family, **asked("no", *marks), **edits)
        assert made.ids == plain.ids
        assert other.boundaries == made.boundaries
        (boundary,) = made.boundaries
        before, after = (_common(made.ids.tolist(), each.ids.tolist()) for each in (whole, other))
        assert len(before) < boundary.tokens <= len(after)


# --- what is cleared, and what is not ----------------------------------------------------------


def written(conversation: Conversation) -> PreparedPrompt:
    """A prompt with a token for every character that is said."""
    return PreparedPrompt(array("I", range(sum(_size(turn) for turn in conversation.turns))))


def _size(turn: Turn) -> int:
    return sum(
        len(str(each.arguments)) if isinstance(each, ToolCall) else len(each.text)
        for each in turn.blocks
    )


def used(name: str = "Read", count: int = 1, *, first: int = 0) -> tuple[Turn, ...]:
    return tuple(
        each
        for n in range(first, first + count)
        for each in (
            Turn("assistant", (ToolCall(f"{n}", name, {"path": "a" * 100}),), (1, 2)),
            Turn("user", (ToolResult(f"{n}", name, LONG),)),
        )
    )


def edit_of(**fields: Any) -> Edit:
    kind = ClearToolUses if fields["type"] == USES else ClearThinking
    return kind.model_validate(fields)


def after(turns: tuple[Turn, ...], *edits: dict[str, Any]) -> Edited:
    return edited(Conversation(turns), [edit_of(**each) for each in edits], written, 1 << 20)


def cleared(made: Edited) -> list[str]:
    """The ids of results that are."""
    blocks = [each for turn in made.conversation.turns for each in turn.blocks]
    return [
        each.call_id for each in blocks if isinstance(each, ToolResult) and each.text == CLEARED
    ]


def test_the_oldest_results_go_and_the_newest_three_stay() -> None:
    made = after(used(count=6), uses())
    assert cleared(made) == ["0", "1", "2"]
    assert [each.as_json() for each in made.applied] == [
        {
            "type": USES,
            "cleared_tool_uses": 3,
            "cleared_input_tokens": 3 * (len(LONG) - len(CLEARED)),
        }
    ]


def test_nothing_goes_before_the_prompt_exceeds_what_triggers() -> None:
    turns = used(count=6)
    tokens = len(written(Conversation(turns)).ids)
    assert cleared(after(turns, {"type": USES})) == []  # 100,000 tokens
    for trigger, due in (
        (input_tokens(tokens), False),
        (input_tokens(tokens - 1), True),
        (tool_uses(6), False),
        (tool_uses(5), True),
    ):
        assert bool(cleared(after(turns, {"type": USES, "trigger": trigger}))) == due


def test_an_edit_that_clears_too_little_is_left_out() -> None:
    turns = used(count=5)
    fewer = 2 * (len(LONG) - len(CLEARED))
    assert len(cleared(after(turns, uses(clear_at_least=input_tokens(fewer))))) == 2
    made = after(turns, uses(clear_at_least=input_tokens(fewer + 1)))
    assert (made.conversation.turns, made.applied) == (turns, ())


def test_an_edit_that_would_make_the_prompt_longer_is_left_out() -> None:
    turns = (
        Turn("assistant", (ToolCall("1", "a", {}),)),
        Turn("user", (ToolResult("1", "a", ""),)),
    )
    made = after(turns, uses(keep=tool_uses(0)))
    assert (made.conversation.turns, made.applied) == (turns, ())


def test_excluded_tools_are_never_cleared_and_unknown_ones_do_not_matter() -> None:
    turns = used("memory") + used("Read", 3, first=1) + used("memory", first=4)
    made = after(turns, uses(keep=tool_uses(2), exclude_tools=["memory", "Gone"]))
    assert cleared(made) == ["1", "2"]


@pytest.mark.parametrize(
    ("inputs", "emptied"),
    [(None, ""), (False, ""), ([], ""), (True, "01"), (["Read"], "0"), (["Gone"], "")],
)
def test_inputs_of_cleared_calls_go_where_that_is_asked_for(inputs: Any, emptied: str) -> None:
    turns = used("Read") + used("Run", first=1) + used("Read", first=2)
    made = after(turns, uses(keep=tool_uses(1), clear_tool_inputs=inputs))
    assert cleared(made) == ["0", "1"]
    calls = {
        block.id: turn
        for turn in made.conversation.turns
        for block in turn.blocks
        if isinstance(block, ToolCall)
    }
    assert {id for id, turn in calls.items() if not turn.tokens} == set(emptied)
    for id, turn in calls.items():
        (block,) = turn.blocks
        assert isinstance(block, ToolCall)
        assert (block.arguments == {}) == (id in emptied)


def test_a_failed_result_is_still_one_that_failed() -> None:
    turns = (
        Turn("assistant", (ToolCall("1", "a", {}),)),
        Turn("user", (ToolResult("1", "a", LONG, is_error=True), Text("go on"))),
    )
    made = after(turns, uses(keep=tool_uses(0)))
    assert made.conversation.turns[1].blocks == (
        ToolResult("1", "a", CLEARED, is_error=True),
        Text("go on"),
    )


def talk(*answers: tuple[Any, ...]) -> tuple[Turn, ...]:
    return tuple(
        each
        for n, blocks in enumerate(answers)
        for each in (Turn.of("user", f"question {n}"), Turn("assistant", blocks, (1, 2)))
    )


def thoughts(made: Edited) -> list[str]:
    blocks = [each for turn in made.conversation.turns for each in turn.blocks]
    return [each.text for each in blocks if isinstance(each, Thinking)]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ({}, ["c"]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, ["b", "c"]),
        ({"keep": {"type": "thinking_turns", "value": 9}}, ["a", "b", "c"]),
        ({"keep": {"type": "all"}}, ["a", "b", "c"]),
        ({"keep": "all"}, ["a", "b", "c"]),
    ],
)
def test_the_thinking_of_the_latest_turns_stays(keep: Any, kept: list[str]) -> None:
    turns = talk(
        (Thinking("a"), Text("A")), (Thinking("b"), Text("B")), (Thinking("c"),), (Text("D"),)
    )
    made = after(turns, {"type": THOUGHTS, **keep})
    assert thoughts(made) == kept
    assert [each.tokens == () for each in made.conversation.turns[1::2]] == [
        each not in kept for each in "abc"
    ] + [False]
    assert [each.cleared for each in made.applied] == [3 - len(kept)] * (len(kept) < 3)


def test_calls_and_what_is_said_after_them_are_one_turn() -> None:
    turns = (
        *talk((Thinking("a"), Text("A"))),
        Turn.of("user", "question"),
        Turn("assistant", (Thinking("b"), ToolCall("1", "Read", {}))),
        Turn("user", (ToolResult("1", "Read", "x"),)),
        Turn.of("system", "Be brief."),
        Turn("assistant", (Thinking("c"), Text("C"))),
    )
    assert thoughts(after(turns, {"type": THOUGHTS})) == ["b", "c"]
    more = (*turns, Turn.of("user", "next"), Turn("assistant", (Thinking("d"), Text("D"))))
    made = after(more, {"type": THOUGHTS})
    assert thoughts(made) == ["d"]
    assert [each.cleared for each in made.applied] == [2]


def test_texts_around_cleared_thinking_become_one() -> None:
    turns = talk((Text("a"), Thinking("hm, well"), Text("b")), (Thinking("so"), Text("c")))
    made = after(turns, {"type": THOUGHTS})
    assert made.conversation.turns[1].blocks == (Text("a\n\nb"),)


def test_edits_are_made_in_order_and_each_is_counted_after_the_one_before() -> None:
    turns = (*talk((Thinking("x" * 500), Text("A")), (Thinking("b"), Text("B"))), *used(count=4))
    turns = (*turns[:-8], Turn.of("user", "go"), *turns[-8:])
    tokens = len(written(Conversation(turns)).ids)
    due = {"type": USES, "trigger": input_tokens(tokens - 100)}
    assert [each.kind for each in after(turns, due).applied] == [USES]
    made = after(turns, {"type": THOUGHTS}, due)  # then it is not due any more
    assert [(each.kind, each.cleared_input_tokens) for each in made.applied] == [(THOUGHTS, 500)]
    assert made.original_tokens == tokens


# --- any conversation, any edits ---------------------------------------------------------------

NAMES = st.sampled_from(["Read", "Run", "memory"])
EDITS = st.one_of(
    st.builds(
        lambda trigger, keep, least, excluded, inputs: uses(
            trigger=trigger,
            keep=tool_uses(keep),
            clear_at_least=least,
            exclude_tools=excluded,
            clear_tool_inputs=inputs,
        ),
        st.one_of(st.integers(0, 6).map(tool_uses), st.integers(0, 2000).map(input_tokens)),
        st.integers(0, 5),
        st.none() | st.integers(0, 500).map(input_tokens),
        st.none() | st.lists(NAMES, max_size=2),
        st.none() | st.booleans() | st.lists(NAMES, max_size=2),
    ),
    st.just({"type": THOUGHTS, "keep": "all"}),
    st.integers(1, 4).map(
        lambda n: {"type": THOUGHTS, "keep": {"type": "thinking_turns", "value": n}}
    ),
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    turns: list[Turn] = []
    for number in range(draw(st.integers(1, 6))):
        turns.append(Turn.of("user", f"question {number}"))
        for round in range(draw(st.integers(0, 3))):
            names = draw(st.lists(NAMES, min_size=1, max_size=2))
            ids = [f"{number}.{round}.{n}" for n in range(len(names))]
            said = [Thinking(LONG)] * draw(st.integers(0, 1)) + [Text("so")] * draw(
                st.integers(0, 1)
            )
            calls = [ToolCall(id, name, {"a": LONG}) for id, name in zip(ids, names, strict=True)]
            results = [
                ToolResult(id, name, draw(st.sampled_from(["", "x", LONG])))
                for id, name in zip(ids, names, strict=True)
            ]
            tokens = draw(st.sampled_from([(), (7, 8)]))
            turns += (Turn("assistant", (*said, *calls), tokens), Turn("user", tuple(results)))
        thinking = [Thinking("hm")] * draw(st.integers(0, 1))
        turns.append(Turn("assistant", (*thinking, Text(f"answer {number}")), (9,)))
    return Conversation((*turns, Turn.of("user", "end")))


@given(conversations(), st.lists(EDITS, max_size=3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_edits_keep_every_pair_and_touch_nothing_else(
    conversation: Conversation, edits: list[dict[str, Any]]
) -> None:
    made = edited(conversation, [edit_of(**each) for each in edits], written, 1 << 20)
    assert written(made.conversation) == made.rendered
    assert made.original_tokens == len(written(conversation).ids)
    fewer = sum(each.cleared_input_tokens for each in made.applied)
    assert len(made.rendered.ids) == made.original_tokens - fewer
    assert all(each.cleared > 0 and each.cleared_input_tokens > 0 for each in made.applied)
    assert len(made.conversation.turns) == len(conversation.turns)
    for before, now in zip(conversation.turns, made.conversation.turns, strict=True):
        if now == before:
            continue
        assert (now.role, now.tokens) == (before.role, ())
        kept = [each for each in before.blocks if not isinstance(each, Thinking)]
        said = [each for each in now.blocks if not isinstance(each, Thinking)]
        for old, new in zip(kept, said, strict=True):
            match old:
                case ToolCall():
                    assert new in (old, replace(old, arguments={}))
                case ToolResult():
                    assert new in (old, replace(old, text=CLEARED))
                case _:
                    assert new == old
    again = edited(made.conversation, [edit_of(**each) for each in edits], written, 1 << 20)
    assert len(again.rendered.ids) <= len(made.rendered.ids)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (uses(trigger=input_tokens(-1)), ".trigger.value: Input should be greater than or equal"),
        (uses(trigger={"type": "words", "value": 1}), ".trigger.type: Input should be 'input_"),
        (uses(trigger={"type": "tool_uses"}), ".trigger.value: Field required"),
        (uses(keep=input_tokens(1)), ".keep.type: Input should be 'tool_uses'"),
        (uses(keep={**tool_uses(1), "least": 2}), ".keep.least: Extra inputs are not permitted"),
        (uses(keep="all"), ".keep: Input should be an object"),
        (uses(clear_at_least=tool_uses(1)), ".clear_at_least.type: Input should be 'input_tokens'"),
        (uses(exclude_tools=[1]), ".exclude_tools.0: Input should be a valid string"),
        (uses(clear_tool_inputs="Read"), ".clear_tool_inputs: Input should be true, false or a"),
        (uses(clear_tool_inputs=[1]), ".clear_tool_inputs: Input should be true, false or a list"),
        (uses(tools=["Read"]), ".tools: Extra inputs are not permitted"),
        ({"type": THOUGHTS, "keep": "none"}, ".keep: Input should be an object"),
        ({"type": THOUGHTS, "keep": {"type": "thinking_turns", "value": 0}}, ".keep.value: Input"),
        ({"type": THOUGHTS, "keep": tool_uses(1)}, ".keep.type: Input should be 'thinking_turns'"),
        ({"type": THOUGHTS, "trigger": tool_uses(1)}, ".trigger: Extra inputs are not permitted"),
    ],
)
def test_nonsense_is_refused_by_its_path(
    edit: dict[str, Any], fault: str, kind: type[BaseRequest]
) -> None:
    message = refusal(kind, **editing(edit)).message
    assert message.startswith(f"context_management.edits.0{fault}")


def test_thinking_is_cleared_first_or_not_at_all() -> None:
    assert refusal(**editing(uses(), {"type": THOUGHTS})).message == (
        "context_management.edits.1.type: 'clear_thinking_20251015' must be the first of the edits;"
        " put it before the others"
    )


def test_thinking_that_was_altered_is_refused_although_it_would_be_cleared() -> None:
    altered = {**thought("hm"), "thinking": "Hm!"}
    messages = [user("a"), assistant([altered, text("b")]), user("c"), assistant("d"), user("e")]
    fault = refusal(messages=messages, **editing({"type": THOUGHTS}))
    assert fault.message.startswith("messages.1.content.0: this thinking is not as this server")


@pytest.mark.anyio
async def test_a_system_turn_after_results_keeps_its_place(family: Family) -> None:
    messages = [
        user("a"),
        assistant([call("1")]),
        system("Be brief."),
        user([result("1", LONG)]),
        assistant("b"),
        user("c"),
    ]
    made = await prompt(
        MessagesRequest, family, messages=messages, **editing(uses(keep=tool_uses(0)))
    )
    assert made.plan.edits is not None
    assert [each.cleared for each in made.plan.edits] == [1]

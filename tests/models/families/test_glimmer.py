"""Muse Glimmer: its messages as its template has them, and its answers at every split."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.catalog import CheckpointError, inspect
from models.conversation import (
    AnswerForm,
    Conversation,
    Effort,
    Text,
    ThinkingMode,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
)
from models.families.family import NotRendered
from models.families.glimmer import GlimmerFamily
from models.families.glimmer_answer import MARKERS, GlimmerSyntax
from tests.models.families.answers import Follower, blocks, read
from tests.models.families.histories import FORGED, HISTORIES, function_of, messages_of
from tests.models.parsing.call_bodies import TOOLS, no_fault
from tests.support.tiny_glimmer import TEMPLATE, write_tiny_glimmer

THINKS = ThinkingMode("adaptive")
FORM = AnswerForm(tools=TOOLS, thinking=THINKS)
NEXT = "<|eom|><|start|>assistant"
USER = " to=user<|message|>"
SELF = " to=self<|message|>"
INVOKE = (
    '<atem:function_calls>\n<atem:invoke name="run">\n'
    '<atem:parameter name="cmd">ls</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
LS = " to=run<|message|>" + INVOKE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_glimmer(tmp_path_factory.mktemp("models") / "tiny-glimmer")


@pytest.fixture(scope="module")
def family(folder: Path) -> GlimmerFamily:
    return GlimmerFamily(inspect(folder))


@pytest.fixture(scope="module")
def follower(family: GlimmerFamily, folder: Path) -> Follower:
    return Follower(family, folder)


@pytest.mark.parametrize("effort", [None, "low", "xhigh"])
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    "history",
    [
        "one user turn",
        "system and user",
        "a long talk",
        "the assistant first",
        "a result, then text",
        "an empty result",
        "two calls, one of which fails",
        "thinking between calls",
        "thinking only",
        "an empty answer",
    ],
)
def test_a_prompt_is_what_the_checkpoints_own_template_and_tokenizer_make(
    family: GlimmerFamily,
    folder: Path,
    history: str,
    tools: tuple[Tool, ...],
    effort: Effort | None,
) -> None:
    turns = HISTORIES[history]
    reference: Any = AutoTokenizer.from_pretrained(folder)
    theirs = reference.apply_chat_template(
        [message for turn in turns for message in messages_of(_telling_of_errors(turn))],
        tools=[function_of(each) for each in tools] or None,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
        reasoning_strength=effort,
    )
    conversation = Conversation(turns, AnswerForm(tools=tools, thinking=THINKS), effort)
    assert family.render(conversation).ids.tolist() == theirs


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_every_history_is_written(
    family: GlimmerFamily, folder: Path, history: tuple[Turn, ...]
) -> None:
    shown = _shown(family, folder, Conversation(history, FORM))
    for turn in history:
        for each in turn.blocks:
            if isinstance(each, Text | ToolResult):
                assert each.text in shown
    assert "None" not in shown
    assert shown.count("Reasoning strength") == 1


def test_efforts_are_reasoning_strengths(family: GlimmerFamily, folder: Path) -> None:
    def strength(effort: Effort | None) -> str:
        shown = _shown(family, folder, Conversation(HISTORIES["one user turn"], effort=effort))
        return shown.partition("Reasoning strength: ")[2].partition(".")[0]

    asked = {each: strength(each) for each in (None, *family.capabilities.efforts)}
    assert asked == {
        None: "high",
        "low": "low",
        "medium": "medium",
        "high": "high",
        "xhigh": "xhigh",
        "max": "xhigh",
    }


def _telling_of_errors(turn: Turn) -> Turn:
    """The template has no mark for a result that is an error, so its text says it."""
    blocks = (
        replace(each, text=f"Error: {each.text}")
        if isinstance(each, ToolResult) and each.is_error
        else each
        for each in turn.blocks
    )
    return Turn(turn.role, tuple(blocks))


def test_text_before_a_call_is_kept(family: GlimmerFamily, folder: Path) -> None:
    shown = _shown(family, folder, Conversation(HISTORIES["a result last"], FORM))
    assert (
        "<|start|>assistant to=user<|message|>I read it.<|eom|>"
        "<|start|>assistant to=read<|message|><atem:function_calls>\n"
    ) in shown
    assert shown.endswith("print(1)\n\n</tool_output><|eot|><|start|>assistant")


def test_a_late_system_turn_stays_at_its_place(family: GlimmerFamily, folder: Path) -> None:
    shown = _shown(family, folder, Conversation(HISTORIES["a late system turn"], FORM))
    assert "yes?<|eot|><|start|>system<|message|>Be brief.<|eot|><|start|>user<|message|>" in shown


def test_turns_more_leave_the_tokens_before_them_as_they_were(family: GlimmerFamily) -> None:
    turns = [Turn.of("system", "first"), Turn.of("user", "one"), Turn.of("system", "late")]
    for number in range(4):
        prompt = family.render(Conversation(tuple(turns), FORM)).ids.tolist()
        turns.append(Turn.of("assistant", f"answer {number}"))
        turns.append(Turn.of("system", f"note {number}"))
        longer = family.render(Conversation(tuple(turns), FORM)).ids.tolist()
        assert longer[: len(prompt)] == prompt


def test_markers_in_a_text_are_plain_text(family: GlimmerFamily) -> None:
    schema = {"type": "object", "properties": {FORGED: {"type": "string", "description": FORGED}}}
    forged, harmless = (
        Counter(
            each
            for each in family.render(Conversation(HISTORIES[name], AnswerForm(tools=tools))).ids
            if each >= 256
        )
        for name, tools in (
            ("forged markers", (Tool("x", FORGED, schema),)),
            ("harmless instead of forged", (Tool("x", "x", {"type": "object"}),)),
        )
    )
    assert forged == harmless


def test_who_is_not_to_think_is_led_to_the_user_or_left_the_tools(
    family: GlimmerFamily, folder: Path
) -> None:
    def ends(form: AnswerForm) -> tuple[str, str]:
        conversation = Conversation(HISTORIES["one user turn"], form)
        prompt = family.render(conversation)
        return _shown(family, folder, conversation).rpartition("<|start|>")[2], prompt.opens

    assert ends(AnswerForm()) == ("assistant to=user<|message|>", "text")
    assert ends(AnswerForm(thinking=THINKS)) == ("assistant", "header")
    assert ends(AnswerForm(tools=TOOLS)) == ("assistant", "header")
    no_call = AnswerForm(tools=TOOLS, choice=ToolChoice("none"))
    assert ends(no_call) == ("assistant to=user<|message|>", "text")


def test_a_prefill_is_continued(family: GlimmerFamily, folder: Path) -> None:
    conversation = Conversation(HISTORIES["a prefill"], FORM)
    assert _shown(family, folder, conversation).endswith(
        "<|start|>assistant to=user<|message|>One, two"
    )
    assert family.render(conversation).opens == "text"
    empty = Conversation(HISTORIES["an empty prefill"], FORM)
    assert _shown(family, folder, empty).endswith("count<|eot|><|start|>assistant")
    assert family.render(empty).opens == "header"


@pytest.mark.parametrize(
    "template", ["{{ messages }}", "{{ 1 / 0 }}", TEMPLATE.replace("<|start|>user", "user")]
)
def test_a_checkpoint_with_another_template_is_refused_by_name(
    tmp_path: Path, template: str
) -> None:
    with pytest.raises(CheckpointError, match=r"^other .*template"):
        GlimmerFamily(inspect(write_tiny_glimmer(tmp_path / "other", template)))


@pytest.mark.parametrize("name", ["self", "user", "commentary"])
def test_a_tool_with_the_name_of_another_recipient_is_refused(
    family: GlimmerFamily, name: str
) -> None:
    tools = (*TOOLS, Tool(name, "", {"type": "object"}))
    with pytest.raises(NotRendered, match=f"the tool {name} .* rename it"):
        family.render(Conversation(HISTORIES["one user turn"], AnswerForm(tools)))


def test_tools_that_the_template_cannot_write_are_refused(tmp_path: Path) -> None:
    template = TEMPLATE.replace("{%- if tools -%}", "{%- if tools -%}{{ 1 / 0 }}")
    family = GlimmerFamily(inspect(write_tiny_glimmer(tmp_path / "other", template)))
    with pytest.raises(NotRendered, match="tools"):
        family.render(Conversation(HISTORIES["one user turn"], FORM))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (USER + "Hello <b>.", ["Hello <b>."]),
        ("to=user<|message|>Hello.", ["Hello."]),
        ("<|message|>Hello.", ["Hello."]),
        (" to=commentary<|message|>Wait." + NEXT + USER + "Done.", ["Wait.\n\nDone."]),
        ("", []),
        (" to=user", []),
        (USER, []),
        (USER + " \n", []),
        (USER + "\n Hello.", ["\n Hello."]),
        (SELF + "hm " + NEXT + USER + "Yes.", [("thinks", "hm "), "Yes."]),
        (SELF + NEXT + USER + "Yes.", ["Yes."]),
        (SELF + "hm", [("thinks", "hm")]),
        (SELF + "a" + NEXT + SELF + "b" + NEXT + USER + "c", None),
        (SELF + "a<|start|>assistant" + USER + "Yes.", [("thinks", "a"), "Yes."]),
        (SELF + "plan" + NEXT + LS, [("thinks", "plan"), ("run", {"cmd": "ls"})]),
        (USER + "Let me.\n" + NEXT + LS, ["Let me.", ("run", {"cmd": "ls"})]),
        (LS + NEXT + LS, [("run", {"cmd": "ls"})] * 2),
        (LS + NEXT + USER + "\nDone.", [("run", {"cmd": "ls"}), "Done."]),
        (
            LS + NEXT + SELF + "again" + NEXT + LS,
            [("run", {"cmd": "ls"}), ("thinks", "again"), ("run", {"cmd": "ls"})],
        ),
        (LS + "\n trailing" + NEXT + USER + "Done.", [("run", {"cmd": "ls"}), "Done."]),
        # The name in the call is the one that counts.
        (LS.replace("to=run", "to=run.*"), [("run", {"cmd": "ls"})]),
        (LS.replace("to=run", "to=functions.run"), [("run", {"cmd": "ls"})]),
        (LS.replace("run", "nobodys"), [("nobodys", {"cmd": "ls"})]),
        # Quoted calls.
        (USER + f"Write {INVOKE} so.", [f"Write {INVOKE} so."]),
        (USER + f"```\n{INVOKE}\n```", [f"```\n{INVOKE}\n```"]),
        (SELF + INVOKE + NEXT + USER + "No.", [("thinks", INVOKE), "No."]),
        # What is no call.
        (" to=run<|message|>ls -l", ["ls -l"]),
        (' to=run<|message|>{"cmd": 1}' + NEXT + USER + "So.", ['{"cmd": 1}\n\nSo.']),
        (LS.replace('"run"', '"../x"'), [INVOKE.replace('"run"', '"../x"')]),
        # Without a header, or what may have been one.
        ("Hello there.", ["Hello there."]),
        ("Hello\nthere." + NEXT + USER + "So.", ["Hello\nthere.\n\nSo."]),
        ("x" * 500, ["x" * 500]),
        # Ended before all of its tags.
        (LS.removesuffix("\n</atem:function_calls>"), [("run", {"cmd": "ls"})]),
        (LS.removesuffix("</atem:invoke>\n</atem:function_calls>"), [("run", {"cmd": "ls"})]),
    ],
)
def test_answers_are_the_same_at_every_split(raw: str, expected: list[Any] | None) -> None:
    for guided in (True, False):
        form = AnswerForm(tools=TOOLS, thinking=THINKS, guided=guided)
        found = read(lambda form=form: GlimmerSyntax(form, no_fault, "header"), MARKERS, raw)
        if expected is not None:
            assert found == expected


def test_an_answer_to_the_user_from_the_start() -> None:
    found = read(lambda: GlimmerSyntax(AnswerForm(), no_fault, "text"), MARKERS, "to=self, he said")
    assert found == ["to=self, he said"]


def test_tokens_of_thinking_count_from_its_message_to_its_end(follower: Follower) -> None:
    found, tokens = follower.events(FORM, "header", SELF + "hm" + NEXT + USER + "Yes.")
    assert found == [("thinks", "hm"), "Yes."]
    assert tokens == 1 + 2 + 1


def test_without_tools_or_with_none_to_be_called_markup_is_text() -> None:
    for form in (AnswerForm(), AnswerForm(tools=TOOLS, choice=ToolChoice("none"))):
        found = read(lambda form=form: GlimmerSyntax(form, no_fault, "header"), MARKERS, LS)
        assert found == [INVOKE]


@pytest.mark.parametrize("raw", [LS + NEXT + USER + "and", LS.replace("</atem:inv", "</atem:inv")])
def test_one_call_is_all_where_calls_are_not_parallel(raw: str) -> None:
    form = AnswerForm(tools=TOOLS, choice=ToolChoice(parallel=False))
    found = read(lambda: GlimmerSyntax(form, no_fault, "header"), MARKERS, raw)
    assert found == [("run", {"cmd": "ls"})]


def test_text_before_a_call_is_thinking_between_tools() -> None:
    form = AnswerForm(tools=TOOLS, thinking=ThinkingMode("between_tools"))

    def found(raw: str) -> list[Any]:
        return read(lambda: GlimmerSyntax(form, no_fault, "header"), MARKERS, raw)

    assert found(USER + "Let me." + NEXT + LS) == [("thinks", "Let me."), ("run", {"cmd": "ls"})]
    assert found(USER + "Done.") == ["Done."]


@pytest.mark.parametrize("guided", [True, False])
def test_a_call_that_is_cut_is_none(guided: bool) -> None:
    form = AnswerForm(tools=TOOLS, guided=guided)
    closed = INVOKE.index("\n</atem:function_calls>")
    for place in range(closed):
        raw = USER + "a" + NEXT + " to=run<|message|>" + INVOKE[:place]
        found = read(lambda: GlimmerSyntax(form, no_fault, "header"), MARKERS, raw, cut=True)
        assert found in (["a"], ["a", ("run",)] if guided else ["a"]), raw


def test_a_call_that_breaks_off_ends_a_guided_answer_and_is_text_otherwise() -> None:
    raw = LS.replace("</atem:invoke>", "</invoke>")
    guided, held = (
        read(
            lambda guided=guided: GlimmerSyntax(
                AnswerForm(tools=TOOLS, guided=guided), no_fault, "header"
            ),
            MARKERS,
            raw,
        )
        for guided in (True, False)
    )
    assert guided == [("run",), ("invalid", "run")]
    assert held == [INVOKE.replace("</atem:invoke>", "</invoke>")]


def test_a_call_that_does_not_fit_its_schema_is_not_published(follower: Follower) -> None:
    form = AnswerForm(tools=TOOLS, guided=False)
    raw = LS.replace('"cmd"', '"timeout"')
    found, _ = follower.events(form, "header", raw)
    assert found == [("invalid", "run")]


ANY = AnswerForm(TOOLS, ToolChoice("any"))
STARTED = "<|start|>assistant"  # a message, with the one before it not ended
CASES_OF_GUIDES: list[tuple[AnswerForm, str, str, bool]] = [
    (FORM, "header", USER + "Hello.", True),
    (FORM, "header", SELF + "hm" + NEXT + USER + "Hello.", True),
    (FORM, "header", SELF + "hm" + NEXT + SELF + "hm", True),
    (FORM, "header", "Hello.", False),
    (FORM, "header", LS + NEXT + LS, True),
    (FORM, "header", LS + NEXT + USER + "Done.", True),
    (FORM, "header", LS + "more", False),
    (FORM, "header", LS.replace("run", "nobodys"), False),
    (FORM, "header", LS.replace('name="run"', 'name="now"'), False),
    (FORM, "header", LS.replace("cmd", "path"), False),
    (FORM, "header", USER + INVOKE, True),
    (AnswerForm(TOOLS), "header", SELF + "hm", False),
    (AnswerForm(TOOLS), "header", LS, True),
    (ANY, "header", USER + "Hello.", False),
    (ANY, "header", "", False),
    (ANY, "header", LS + NEXT + USER + "Done.", True),
    (AnswerForm(TOOLS, ToolChoice("tool", "now")), "header", LS, False),
    (AnswerForm(TOOLS, ToolChoice("any"), THINKS), "header", SELF + "hm", False),
    (AnswerForm(TOOLS, ToolChoice("any"), THINKS), "header", SELF + "hm" + NEXT + LS, True),
    (AnswerForm(TOOLS, ToolChoice("any"), THINKS), "header", SELF + "hm" + STARTED + LS, True),
    (AnswerForm(TOOLS, ToolChoice("any"), THINKS), "header", SELF + "hm" + STARTED + USER, False),
    (FORM, "header", USER + "I look." + STARTED + LS, True),
    (FORM, "header", USER + "I look." + STARTED + LS + "more", False),
    (AnswerForm(TOOLS, ToolChoice("auto", parallel=False)), "header", LS + NEXT, False),
    (AnswerForm(output_schema={"type": "integer"}), "text", "12", True),
    (AnswerForm(output_schema={"type": "integer"}), "text", "x", False),
    (
        AnswerForm(output_schema={"type": "boolean"}, thinking=THINKS),
        "header",
        SELF + "hm" + NEXT + USER + "true",
        True,
    ),
    (AnswerForm(TOOLS, output_schema={"type": "boolean"}), "header", USER + "x", False),
    (
        AnswerForm(TOOLS, output_schema={"type": "boolean"}),
        "header",
        LS + NEXT + USER + "true",
        True,
    ),
]


@pytest.mark.parametrize(("form", "opens", "raw", "allowed"), CASES_OF_GUIDES)
def test_answers_are_guided(
    follower: Follower, form: AnswerForm, opens: str, raw: str, allowed: bool
) -> None:
    assert (follower.refused(form, opens, raw) is None) == allowed


def test_plain_text_is_guided_by_nothing(family: GlimmerFamily) -> None:
    assert family.guide(AnswerForm(thinking=THINKS), "header") is None
    no_call = AnswerForm(tools=TOOLS, choice=ToolChoice("none"))
    assert family.guide(no_call, "text") is None


def test_without_a_grammar_calls_are_free(follower: Follower) -> None:
    form = AnswerForm(TOOLS, guided=False)
    raw = LS.replace("cmd", "timeout") + NEXT + USER + "Done."
    assert follower.refused(form, "header", raw) is None


def test_thinking_is_closed_where_its_budget_ends(follower: Follower) -> None:
    form = AnswerForm(thinking=ThinkingMode("enabled", 12))
    for length in range(20):
        raw = SELF + "x" * length + NEXT + USER + "Yes."
        _, tokens = follower.events(form, "header", raw)
        assert (follower.refused(form, "header", raw) is None) == (tokens <= 12)


def test_a_long_value_is_read_in_pieces() -> None:
    value = "</atem:param <atem " * 1000
    raw = INVOKE.replace(">ls<", f">{value}<")
    syntax = GlimmerSyntax(FORM, no_fault, "header")
    events = [*syntax.text(" to=run"), *syntax.marker("<|message|>")]
    for place in range(0, len(raw), 4):
        events += syntax.text(raw[place : place + 4])
    events += syntax.end(cut=False)
    assert blocks(events) == [("run", {"cmd": value})]


def _shown(family: GlimmerFamily, folder: Path, conversation: Conversation) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(family.render(conversation).ids.tolist(), skip_special_tokens=False)

"""Gemma 4: its turns as its template has them, and its answers at every split."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.catalog import CheckpointError, inspect
from models.conversation import (
    AnswerForm,
    Conversation,
    Text,
    ThinkingMode,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
)
from models.families.family import NotRendered
from models.families.gemma4 import Gemma4Family
from models.families.gemma4_answer import MARKERS, Gemma4Syntax
from tests.models.families.answers import Follower, read
from tests.models.families.histories import FORGED, HISTORIES, function_of, messages_of
from tests.models.parsing.call_bodies import TOOLS, no_fault
from tests.support.tiny_gemma import GEMMA4_MARKERS, GEMMA4_TEMPLATE, write_tiny_gemma4

THINKS = ThinkingMode("adaptive")
FORM = AnswerForm(tools=TOOLS, thinking=THINKS)
LS = '<|tool_call>call:run{cmd:<|"|>ls<|"|>}<tool_call|>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma4(tmp_path_factory.mktemp("models") / "tiny-gemma-4")


@pytest.fixture(scope="module")
def family(folder: Path) -> Gemma4Family:
    return Gemma4Family(inspect(folder))


@pytest.fixture(scope="module")
def follower(family: Gemma4Family, folder: Path) -> Follower:
    return Follower(family, folder)


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    "history",
    [
        "one user turn",
        "system and user",
        "a long talk",
        "a late system turn",
        "a system turn last",
        "a result, then text",
        "an empty result",
        "thinking between calls",
        "an empty answer",
    ],
)
def test_a_prompt_is_what_the_checkpoints_own_template_and_tokenizer_make(
    family: Gemma4Family, folder: Path, history: str, tools: tuple[Tool, ...], thinks: bool
) -> None:
    turns = HISTORIES[history]
    form = AnswerForm(tools=tools, thinking=THINKS if thinks else ThinkingMode())
    reference: Any = AutoTokenizer.from_pretrained(folder)
    theirs = reference.apply_chat_template(
        [message for turn in turns for message in messages_of(turn)],
        tools=[function_of(each) for each in tools] or None,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
        enable_thinking=thinks,
    )
    assert family.render(Conversation(turns, form)).ids.tolist() == theirs


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_every_history_is_written(
    family: Gemma4Family, folder: Path, history: tuple[Turn, ...]
) -> None:
    shown = _shown(family, folder, Conversation(history, FORM))
    for turn in history:
        for each in turn.blocks:
            if isinstance(each, Text | ToolResult):
                assert each.text.strip() in shown
    assert "None" not in shown


def test_text_before_a_call_and_a_failed_result_are_kept(
    family: Gemma4Family, folder: Path
) -> None:
    shown = _shown(family, folder, Conversation(HISTORIES["a result last"]))
    assert "<|turn>model\nI read it.<|tool_call>call:read{deep:{b:null},lines:[1,2]," in shown
    shown = _shown(family, folder, Conversation(HISTORIES["two calls, one of which fails"]))
    assert 'response:now{error:<|"|>no clock<|"|>}<tool_response|>One failed.<turn|>' in shown


def test_markers_in_a_text_are_plain_text(family: Gemma4Family) -> None:
    schema = {"type": "object", "properties": {FORGED: {"type": "string", "description": FORGED}}}
    plain = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}}
    forged, harmless = (
        Counter(
            each
            for each in family.render(Conversation(HISTORIES[name], AnswerForm(tools=tools))).ids
            if each < len(GEMMA4_MARKERS)
        )
        for name, tools in (
            ("forged markers", (Tool("x", FORGED, schema),)),
            ("harmless instead of forged", (Tool("x", "x", plain),)),
        )
    )
    assert forged == harmless


def test_a_block_that_spells_a_marker_and_nothing_else_is_text(family: Gemma4Family) -> None:
    def markers(text: str) -> Counter[int]:
        ids = family.render(Conversation((Turn.of("user", text),))).ids
        return Counter(each for each in ids if each < len(GEMMA4_MARKERS))

    assert markers("<|turn>") == markers("x")


def test_answers_begin_as_the_template_has_it(family: Gemma4Family, folder: Path) -> None:
    def ends(history: str, thinking: ThinkingMode) -> tuple[str, str]:
        conversation = Conversation(HISTORIES[history], AnswerForm(thinking=thinking))
        prompt = family.render(conversation)
        return _shown(family, folder, conversation).rpartition("\n<|turn>")[2], prompt.opens

    assert ends("one user turn", THINKS) == ("model\n", "text")
    off = "<|channel>thought\n<channel|>"
    assert ends("one user turn", ThinkingMode()) == (f"model\n{off}", "text")
    assert ends("one user turn", ThinkingMode("between_tools")) == (f"model\n{off}", "text")
    shown, opens = ends("a result last", THINKS)
    assert (shown[-28:], opens) == ("<tool_response|><|channel>thought\n"[-28:], "thought")
    assert ends("a prefill", THINKS) == ("model\nOne, two", "text")
    assert ends("an empty prefill", THINKS) == ("model\n", "text")


def test_a_template_without_an_empty_thought_gets_none(tmp_path: Path) -> None:
    template = GEMMA4_TEMPLATE.replace("{{- '<|channel>thought\\n<channel|>' -}}", "")
    folder = write_tiny_gemma4(tmp_path / "small", template.replace("'<|channel>thought\n'", "''"))
    family = Gemma4Family(inspect(folder))
    assert _shown(family, folder, Conversation(HISTORIES["one user turn"])).endswith(
        "<|turn>user\nhi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    ) == ("<channel|>" in template.rpartition("add_generation_prompt")[2])


@pytest.mark.parametrize(
    "template",
    ["{{ messages }}", "{{ 1 / 0 }}", GEMMA4_TEMPLATE.replace("<|turn>' + role", "' + role")],
)
def test_a_checkpoint_with_another_template_is_refused_by_name(
    tmp_path: Path, template: str
) -> None:
    with pytest.raises(CheckpointError, match=r"^other .*template"):
        Gemma4Family(inspect(write_tiny_gemma4(tmp_path / "other", template)))


def test_tools_that_the_template_cannot_write_are_refused(tmp_path: Path) -> None:
    template = GEMMA4_TEMPLATE.replace(
        "declaration:{{ tool.name }}", "{{ raise_exception('no ' + tool.name) }}"
    )
    family = Gemma4Family(inspect(write_tiny_gemma4(tmp_path / "other", template)))
    with pytest.raises(NotRendered, match="no write_file"):
        family.render(Conversation(HISTORIES["one user turn"], FORM))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Hello <b>.", ["Hello <b>."]),
        ("", []),
        (" \n", []),
        (" \n hi ", [" \n hi "]),
        ("<|channel>thought\nhm\n<channel|>Yes.", [("thinks", "hm"), "Yes."]),
        ("<|channel>thought\n\n a \n\n<channel|>\n\nYes.", [("thinks", "\n a \n"), "Yes."]),
        ("<|channel>thought\n<channel|>Yes.", ["Yes."]),
        ("<|channel>thought<channel|>Yes.", ["Yes."]),
        ("<|channel>thou<channel|>Yes.", [("thinks", "thou"), "Yes."]),
        ("<|channel>I think<channel|>Yes.", [("thinks", "I think"), "Yes."]),
        ("<|channel>thought\n \n<channel|>\n" + LS, [("run", {"cmd": "ls"})]),
        ("<channel|><channel|>Yes.<channel|> No.", ["Yes.", " No."]),
        ("<|channel>thought\na<|channel>thought\nb<channel|>c", None),
        ("<|channel>thought\nhm", [("thinks", "hm")]),
        # Calls in thinking are calls if the answer ends there, and thinking if it goes on.
        ("<|channel>thought\nplan" + LS, [("thinks", "plan"), ("run", {"cmd": "ls"})]),
        ("<|channel>thought\n" + LS + "\n" + LS, [("run", {"cmd": "ls"})] * 2),
        (
            f"<|channel>thought\nOne writes {LS} so.\n<channel|>Yes.",
            [("thinks", f"One writes {LS} so."), "Yes."],
        ),
        (f"<|channel>thought\nOne writes {LS} so.", [("thinks", f"One writes {LS} so.")]),
        (
            "<|channel>thought\n" + LS.replace("run", "nobodys"),
            [("thinks", LS.replace("run", "nobodys"))],
        ),
        ("<|channel>thought\n<|tool_call>call:x", [("thinks", "<|tool_call>call:x")]),
        ("Let me.\n\n" + LS + "\n" + LS, None),
        (LS + LS + "Two.", [("run", {"cmd": "ls"}), ("run", {"cmd": "ls"}), "Two."]),
        (
            "<|channel>thought\na<channel|>Text one." + LS + "Text two.",
            [("thinks", "a"), "Text one.", ("run", {"cmd": "ls"}), "Text two."],
        ),
        # Quoted code, and what spells a marker without being one.
        ("Write `" + LS + "` so.", ["Write `" + LS + "` so."]),
        ("```\n" + LS + "\n```\nSo.", ["```\n" + LS + "\n```\nSo."]),
        ("a `<|channel>thought` b", ["a `<|channel>thought` b"]),
        ("`a` " + LS, ["`a`", ("run", {"cmd": "ls"})]),
        # What is no call.
        ("<|tool_call>run it", ["<|tool_call>run it"]),
        ("<|tool_call>run it<tool_call|> or", ["<|tool_call>run it", " or"]),
        ("<|tool_call>call:../x{}<tool_call|>", None),
        ("a<|tool_call>", ["a<|tool_call>"]),
        # Without its close, at the end and before the next.
        (LS.removesuffix("<tool_call|>"), [("run", {"cmd": "ls"})]),
        (LS.removesuffix("<tool_call|>") + LS, [("run", {"cmd": "ls"})] * 2),
        ("<|tool_call>call:nobodys{a:1}<tool_call|>", [("nobodys", {"a": 1})]),
    ],
)
def test_answers_are_the_same_at_every_split(raw: str, expected: list[Any] | None) -> None:
    for guided in (True, False):
        form = AnswerForm(tools=TOOLS, thinking=THINKS, guided=guided)
        found = read(lambda form=form: Gemma4Syntax(form, no_fault, "text"), MARKERS, raw)
        if expected is not None:
            joined = [each for each in expected if not isinstance(each, str)]
            assert [each for each in found if not isinstance(each, str)] == joined
            assert _text(found) == _text(expected)


def _text(found: list[Any]) -> str:
    return "".join(each for each in found if isinstance(each, str))


def test_an_answer_that_begins_in_a_thought(follower: Follower) -> None:
    found, tokens = follower.events(FORM, "thought", "hm\n<channel|>Yes.")
    assert found == [("thinks", "hm"), "Yes."]
    assert tokens == 4  # `hm`, the line's end and the close


def test_tokens_of_thinking_count_its_delimiters(follower: Follower) -> None:
    _, tokens = follower.events(FORM, "text", "<|channel>thought\nhm<channel|>Yes.")
    assert tokens == 1 + len("thought\n") + 2 + 1


def test_without_tools_or_with_none_to_be_called_markup_is_text() -> None:
    for form in (AnswerForm(), AnswerForm(tools=TOOLS, choice=ToolChoice("none"))):
        assert read(lambda form=form: Gemma4Syntax(form, no_fault, "text"), MARKERS, LS) == [LS]


def test_one_call_is_all_where_calls_are_not_parallel() -> None:
    form = AnswerForm(tools=TOOLS, choice=ToolChoice(parallel=False))
    found = read(lambda: Gemma4Syntax(form, no_fault, "text"), MARKERS, LS + "and" + LS)
    assert found == [("run", {"cmd": "ls"})]


def test_text_before_a_call_is_thinking_between_tools() -> None:
    form = AnswerForm(tools=TOOLS, thinking=ThinkingMode("between_tools"))

    def found(raw: str) -> list[Any]:
        return read(lambda: Gemma4Syntax(form, no_fault, "text"), MARKERS, raw)

    assert found("Let me." + LS) == [("thinks", "Let me."), ("run", {"cmd": "ls"})]
    assert found("Done.") == ["Done."]
    assert found(LS + "Done.") == [("run", {"cmd": "ls"}), "Done."]


@pytest.mark.parametrize("guided", [True, False])
def test_a_call_that_is_cut_is_none(guided: bool) -> None:
    form = AnswerForm(tools=TOOLS, guided=guided)
    call = LS.removeprefix("<|tool_call>").removesuffix("<tool_call|>")
    for place in range(len(call)):
        raw = "a<|tool_call>" + call[:place]
        found = read(lambda: Gemma4Syntax(form, no_fault, "text"), MARKERS, raw, cut=True)
        assert found in (["a"], ["a", ("run",)] if guided else ["a"]), raw


def test_a_call_that_breaks_off_ends_a_guided_answer_and_is_text_otherwise() -> None:
    raw = "<|tool_call>call:run{timeout:}<tool_call|>"
    guided, held = (
        read(
            lambda guided=guided: Gemma4Syntax(
                AnswerForm(tools=TOOLS, guided=guided), no_fault, "text"
            ),
            MARKERS,
            raw,
        )
        for guided in (True, False)
    )
    assert guided == [("run",), ("invalid", "run")]
    assert held == [raw]


def test_a_call_that_does_not_fit_its_schema_is_not_published(
    family: Gemma4Family, follower: Follower
) -> None:
    form = AnswerForm(tools=TOOLS, guided=False)
    found, _ = follower.events(form, "text", "<|tool_call>call:run{timeout:3}<tool_call|>")
    assert found == [("invalid", "run")]


CASES_OF_GUIDES: list[tuple[AnswerForm, str, str, bool]] = [
    (FORM, "text", "Hello.", True),
    (FORM, "text", "<|channel>thought\nhm\n<channel|>Hello.", True),
    (FORM, "text", "Let me." + LS + LS, True),
    (FORM, "text", "`" + LS.replace("run", "x"), True),
    (FORM, "text", LS.replace("run", "nobodys"), False),
    (FORM, "text", LS.replace("cmd", "timeout"), False),
    (FORM, "thought", "hm\n<channel|>" + LS, True),
    (FORM, "thought", "hm" + LS, True),
    (AnswerForm(TOOLS, ToolChoice("any")), "text", "Hello.", False),
    (AnswerForm(TOOLS, ToolChoice("any")), "text", "", False),
    (AnswerForm(TOOLS, ToolChoice("any")), "text", LS, True),
    (AnswerForm(TOOLS, ToolChoice("tool", "now")), "text", LS, False),
    (AnswerForm(TOOLS, ToolChoice("any"), THINKS), "text", "<|channel>hm<channel|>" + LS, True),
    (AnswerForm(TOOLS, ToolChoice("any"), THINKS), "text", "<|channel>hm", False),
    (AnswerForm(TOOLS, ToolChoice("any", parallel=False)), "text", LS + LS, False),
    (AnswerForm(output_schema={"type": "integer"}), "text", "12", True),
    (AnswerForm(output_schema={"type": "integer"}), "text", "x", False),
    (AnswerForm(output_schema={"type": "boolean"}), "text", "true and", False),
    (
        AnswerForm(output_schema={"type": "boolean"}, thinking=THINKS),
        "text",
        "<|channel>hm<channel|>true",
        True,
    ),
    (AnswerForm(TOOLS, output_schema={"type": "boolean"}), "text", LS + "true", True),
    (AnswerForm(TOOLS, output_schema={"type": "boolean"}), "text", LS + "x", False),
]


@pytest.mark.parametrize(("form", "opens", "raw", "allowed"), CASES_OF_GUIDES)
def test_answers_are_guided(
    follower: Follower, form: AnswerForm, opens: str, raw: str, allowed: bool
) -> None:
    assert (follower.refused(form, opens, raw) is None) == allowed


def test_plain_text_is_guided_by_nothing(family: Gemma4Family) -> None:
    assert family.guide(AnswerForm(thinking=THINKS)) is None
    assert family.guide(AnswerForm(tools=TOOLS, choice=ToolChoice("none"))) is None


def test_without_a_grammar_calls_are_free(family: Gemma4Family, follower: Follower) -> None:
    assert family.guide(AnswerForm(TOOLS, guided=False)) is None
    form = AnswerForm(TOOLS, thinking=ThinkingMode("enabled", 12), guided=False)
    assert follower.refused(form, "text", LS.replace("cmd", "timeout") + "Done.") is None


@pytest.mark.parametrize("opens", ["text", "thought"])
def test_thinking_is_closed_where_its_budget_ends(follower: Follower, opens: str) -> None:
    form = AnswerForm(thinking=ThinkingMode("enabled", 12))
    opening = "" if opens == "thought" else "<|channel>thought\n"
    for length in range(20):
        raw = opening + "x" * length + "<channel|>Yes."
        _, tokens = follower.events(form, opens, raw)
        assert (follower.refused(form, opens, raw) is None) == (tokens <= 12)


def _shown(family: Gemma4Family, folder: Path, conversation: Conversation) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(family.render(conversation).ids.tolist(), skip_special_tokens=False)

"""A marked prompt is kept up to its marks: neither beyond them, nor at a place that moves."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models.catalog import inspect
from models.conversation import (
    AnswerForm,
    Block,
    Conversation,
    Mark,
    Text,
    Thinking,
    ThinkingMode,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from models.families import family_of
from models.families.boundaries import boundaries
from models.families.family import Family, NotRendered, PreparedPrompt
from models.parsing.answer import AnswerParser
from tests.models.families.histories import HISTORIES
from tests.models.families.test_generic import BRACKETS
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import Generation, write_tiny_qwen

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "llama": write_tiny_checkpoint,
    "gemma3": write_tiny_gemma3,
    "gemma4": write_tiny_gemma4,
    "glimmer": write_tiny_glimmer,
    "generic": partial(write_tiny_gemma3, template=BRACKETS),
    **{each: partial(write_tiny_qwen, generation=each) for each in get_args(Generation)},
}
SHORT, LONG = 300, 3600
PIECES = st.lists(
    st.sampled_from(
        [*". \n\t-{}`a1é\u0301", "\r\n", "\n\n", "  ", "...", "ab", "def", "😀", "<|im_end|>"]
    ),
    min_size=1,
    max_size=8,
).map("".join)
TWO_CALLS = "two calls, one of which fails"
TOOLS = tuple(
    Tool(name, f"To {name}.", {"type": "object", "properties": {"path": {"type": "string"}}})
    for name in ("read", "write", "run")
)


class Model:
    def __init__(self, folder: Path) -> None:
        self.family = family_of(inspect(folder))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def of(self, *turns: Turn, tools: tuple[Tool, ...] = ()) -> Conversation:
        """As far as the family knows tools."""
        return Conversation(turns, AnswerForm(tools if self.family.capabilities.tools else ()))

    def ids(self, conversation: Conversation) -> list[int]:
        return self.family.render(conversation).ids.tolist()

    def boundaries(self, conversation: Conversation) -> list[tuple[int, int]]:
        found = boundaries(self.family, conversation, self.family.render(conversation))
        return [(each.tokens, each.ttl_seconds) for each in found]

    def kept(self, conversation: Conversation) -> list[int]:
        """The prompt up to the one boundary that it has."""
        [(tokens, _)] = self.boundaries(conversation)
        return self.ids(conversation)[:tokens]

    def plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(FAMILIES[request.param](tmp_path_factory.mktemp("models") / "tiny"))


def marked(text: str, ttl_seconds: int = SHORT, at: int | None = None) -> Text:
    return Text(text, (Mark(len(text) if at is None else at, ttl_seconds),))


def each_marked(turns: tuple[Turn, ...]) -> Iterator[tuple[int, Block, tuple[Turn, ...]]]:
    """The turns with a mark at the end of one block, and where that is."""
    for place, turn in enumerate(turns):
        for number, block in enumerate(turn.blocks):
            match block:
                case Text(text) | ToolResult(text=text):
                    with_mark: Block = replace(block, marks=(Mark(len(text), SHORT),))
                case ToolCall():
                    with_mark = replace(block, kept_seconds=SHORT)
                case Thinking():
                    continue
            blocks = (*turn.blocks[:number], with_mark, *turn.blocks[number + 1 :])
            changed = replace(turn, blocks=blocks)
            yield place, with_mark, (*turns[:place], changed, *turns[place + 1 :])


def continued(model: Model, turns: tuple[Turn, ...], place: int, block: Block) -> Iterator[Turn]:
    """The turn at `place`, whose marked block is its last, with more to it."""
    turn = turns[place]
    match block:
        case Text(text) if turn.blocks[-1] == block:
            for more in ("\n\nmore", "\n\n<b>", "\n\n\n", "\n\n\n\n1"):
                yield replace(turn, blocks=(*turn.blocks[:-1], Text(text + more)))
        case ToolResult() if turn.blocks[-1] == block:
            yield replace(turn, blocks=(*turn.blocks, Text("more")))
        case _:
            pass


@pytest.mark.parametrize("name", HISTORIES)
def test_marks_make_no_difference_to_a_prompt(model: Model, name: str) -> None:
    tools = tuple(replace(each, kept_seconds=SHORT) for each in TOOLS)
    for _, _, turns in each_marked(HISTORIES[name]):
        marked, bare = model.of(*turns, tools=tools), model.of(*HISTORIES[name], tools=TOOLS)
        assert model.family.render(marked) == model.family.render(bare)


@pytest.mark.parametrize("name", sorted(HISTORIES.keys() - {"forged markers"}))
def test_a_boundary_is_where_what_is_marked_ends(model: Model, name: str) -> None:
    for _, block, turns in each_marked(HISTORIES[name]):
        kept = model.text(model.kept(model.of(*turns)))
        match block:
            case Text(text):
                assert kept.rstrip().endswith(text.strip())
            case ToolResult(text=text):
                assert kept.rstrip().endswith(text.strip() or block.name) or not text
            case ToolCall():
                assert block.name in kept
            case Thinking():
                pass


@pytest.mark.parametrize(
    "name", sorted(HISTORIES.keys() - {"a system turn between call and result"})
)
def test_what_is_kept_begins_the_prompt_of_whatever_follows_the_mark(
    model: Model, name: str
) -> None:
    after = [
        (),
        (Turn.of("user", "Next."),),
        (Turn.of("assistant", "Next."), Turn.of("user", "and?")),
        (Turn.of("system", "Next."), Turn.of("user", "and?")),
    ]
    if model.family.name == "gemma4" and name in ("thinking between calls", TWO_CALLS):
        return  # it drops what others thought from the turns before a question
    for place, block, turns in each_marked(HISTORIES[name]):
        if (turns[place].role, place) == ("assistant", len(turns) - 1):
            continue  # a prefill, which is no turn like others in all families
        kept = model.kept(model.of(*turns))
        for turn in (turns[place], *continued(model, turns, place, block)):
            before = (*turns[:place], turn)
            calls = any(isinstance(each, ToolCall) for each in turn.blocks)
            for more in [turns[place + 1 :]] if calls else [turns[place + 1 :], *after]:
                if turn.role == (more[0].role if more else "assistant"):
                    continue
                assert model.ids(model.of(*before, *more))[: len(kept)] == kept


def test_a_text_may_be_kept_in_part(model: Model) -> None:
    for text in ("one. two", "one.\n\ntwo", "one.\n\n\x01two"):
        asked = Turn("user", (marked(text, at=4),))
        kept = model.kept(model.of(asked))
        assert model.text(kept).endswith("one.")
        other = Turn.of("user", f"{text[:4]}\n\nthree")
        assert model.ids(model.of(other))[: len(kept)] == kept


def test_marks_at_one_place_are_one_that_lasts_the_longest(model: Model) -> None:
    marks = (Mark(2, SHORT), Mark(1, LONG), Mark(2, LONG), Mark(2, SHORT))
    found = model.boundaries(model.of(Turn("user", (Text("abc", marks),))))
    assert [seconds for _, seconds in found] == [LONG, LONG]
    assert found[0][0] < found[1][0]
    ids = model.ids(model.of(Turn.of("user", "abc")))
    assert [model.text(ids[:place])[-1] for place, _ in found] == ["a", "b"]


def test_a_tool_is_kept_up_to_its_end_whatever_tools_follow(model: Model) -> None:
    if not model.family.capabilities.tools:
        return
    asked = Turn.of("user", "hi")
    for place, tool in enumerate(TOOLS):
        tools = (*TOOLS[:place], replace(tool, kept_seconds=SHORT), *TOOLS[place + 1 :])
        kept = model.kept(model.of(asked, tools=tools))
        said = model.text(kept)
        assert all(f"To {each.name}." in said for each in TOOLS[: place + 1])
        assert not any(each.name in said for each in TOOLS[place + 1 :])
        for others in (TOOLS[: place + 1], (*TOOLS[: place + 1], replace(TOOLS[0], name="x"))):
            assert model.ids(model.of(asked, tools=others))[: len(kept)] == kept


def test_the_end_of_the_system_text_keeps_the_tools_too(model: Model) -> None:
    """For they come before it in a request, if not in all prompts."""
    system = Turn("system", (marked("Be brief."),))
    kept = model.kept(model.of(system, Turn.of("user", "hi"), tools=TOOLS))
    said = model.text(kept)
    assert "Be brief." in said
    if model.family.capabilities.tools:
        assert all(f"To {each.name}." in said for each in TOOLS)
    for turns in ((Turn.of("user", "other"),), (Turn.of("assistant", "x"), Turn.of("user", "y"))):
        other = model.of(Turn.of("system", "Be brief."), *turns, tools=TOOLS)
        assert model.ids(other)[: len(kept)] == kept


def test_an_answer_in_its_own_tokens_is_kept_up_to_its_end(model: Model) -> None:
    asked = Turn.of("user", "hi")
    prompt = model.family.render(model.of(asked))
    if prompt.answer_from is None:
        return
    opening = prompt.ids[prompt.answer_from :].tolist()
    answer = [token for each in "Yes." for token in model.plain(each)]
    tokens = (*opening, *answer, min(model.family.stop_ids))
    after = Turn.of("user", "and?")
    turn = Turn("assistant", (marked("Yes."),), tokens)
    assert model.kept(model.of(asked, turn, after)) == [*prompt.ids, *answer]
    turn = Turn("assistant", (marked("Yes.", at=2),), tokens)
    conversation = model.of(asked, turn, after)
    kept = model.kept(conversation)
    assert kept == model.ids(conversation)[: len(kept)]
    assert len(prompt.ids) - len(opening) < len(kept) <= len(prompt.ids) + 2


class Scripted(Family):
    """Writes nothing but texts, one token a character, and no control characters."""

    name = "scripted"
    stop_ids = frozenset({0})
    refuses = False

    def render(self, conversation: Conversation) -> PreparedPrompt:
        text = "".join(turn.text for turn in conversation.turns)
        if self.refuses and "\x01" in text:
            raise NotRendered("no such character")
        return PreparedPrompt(array("I", [ord(each) for each in text if each >= " "]))

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        raise NotImplementedError


@pytest.mark.parametrize("refuses", [False, True])
def test_a_mark_after_which_nothing_makes_a_difference_has_no_boundary(refuses: bool) -> None:
    family = Scripted()
    family.refuses = refuses
    conversation = Conversation(
        (
            Turn(
                "user",
                (marked("ab", at=1), ToolResult("", "", "")),
            ),
        )
    )
    assert boundaries(family, conversation, family.render(conversation)) == ()


def test_a_prompt_without_marks_has_no_boundaries(model: Model) -> None:
    for turns in HISTORIES.values():
        assert model.boundaries(model.of(*turns, tools=TOOLS)) == []


@pytest.mark.parametrize("name", ["smollm2", "qwen", "gemma"])
def test_a_boundary_holds_where_tokens_are_of_many_characters(
    request: pytest.FixtureRequest, name: str
) -> None:
    model = _real(request, name)
    for text in ("Be brief.", "Be brief:\n", "def f():\n    ", "größer 😀", "a\n\n", "1234", "x "):
        for role in ("system", "user", "assistant"):
            before = () if role == "system" else (Turn.of("system", "Be kind."),)
            turn = Turn(role, (marked(text),))
            kept = model.kept(model.of(*before, turn, Turn.of("user", "hi")))
            assert text.strip()[:-4] in model.text(kept)
            for more in ("", "\n\nBut not too brief.", "\n\n- so", "\n\n\n\n", "\n\n{"):
                other = Turn.of(role, text + more)
                assert model.ids(model.of(*before, other))[: len(kept)] == kept


@pytest.mark.parametrize("name", ["smollm2", "qwen", "gemma"])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(said=PIECES.filter(str.strip), more=PIECES.filter(str.strip), after=PIECES)
def test_any_text_is_kept_where_any_other_follows(
    request: pytest.FixtureRequest, name: str, said: str, more: str, after: str
) -> None:
    model = _real(request, name)
    turn = Turn("user", (marked(said),))
    begun = model.of(turn, Turn.of("assistant", "Yes."), Turn.of("user", after))
    [(tokens, _)] = model.boundaries(begun)
    kept = model.ids(begun)[:tokens]
    longer = f"{said}\n\n{more}"
    assert model.ids(model.of(Turn.of("user", longer)))[:tokens] == kept
    later = model.kept(model.of(Turn("user", (Text(longer, (Mark(len(said), SHORT),)),))))
    assert model.ids(begun)[: len(later)] == later


@cache
def _made(folder: Path) -> Model:
    return Model(folder)


def _real(request: pytest.FixtureRequest, name: str) -> Model:
    return _made(request.getfixturevalue(name))


def test_thinking_of_others_moves_no_boundary_of_what_was_asked_before(model: Model) -> None:
    if not model.family.capabilities.thinking:
        return
    form = AnswerForm(thinking=ThinkingMode("adaptive"))
    asked = Turn("user", (marked("hi"),))
    first = Conversation((asked,), form)
    thought = Turn("assistant", (Thinking("hm"), Text("yes")))
    later = Conversation((asked, thought, Turn.of("user", "and?")), form)
    assert model.kept(later) == model.kept(first)

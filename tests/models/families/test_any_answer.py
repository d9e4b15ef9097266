"""Whatever a model writes is read, and the same at every split of its text, in every language."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.conversation import AnswerForm, ThinkingMode, ToolChoice
from models.families import gemma4_answer, glimmer_answer
from models.families.gemma4_answer import CHANNEL_END, QUOTE, Gemma4Syntax
from models.families.glimmer_answer import MESSAGE, MESSAGE_END, START, GlimmerSyntax
from models.families.qwen_answer import QwenSyntax
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END, Dialect
from models.grammar.validation import Schemas
from models.parsing.events import CallArguments, CallEnd, CallStart, Event, InvalidCall
from models.parsing.syntax import Syntax
from tests.models.families.answers import blocks
from tests.models.parsing.call_bodies import TOOLS

Make = Callable[[AnswerForm, str], Syntax]


@dataclass(frozen=True, repr=False)
class Language:
    """One family's: its markers, a whole answer, what else its calls are made of, and where
    prompts leave off."""

    make: Make
    markers: tuple[str, ...]
    answer: tuple[str, ...]
    pieces: tuple[str, ...]
    opens: tuple[str, ...]


def _fault(form: AnswerForm) -> Callable[[str, dict[str, Any]], str | None]:
    return Schemas(form.tools).fault


def _qwen(calls: Any) -> Make:
    dialect = Dialect(False, calls, False, "\n", (), (), (), True, False, ((), ()), True, ())
    return lambda form, opens: QwenSyntax(form, dialect, _fault(form), opens)


_PROSE = ("\n", " ", "```\n", "`", "a", "é😀", "null", "true", "12", "-1.5e3", ",", '"', "\\")
_QWEN_MARKERS = (CALL, CALL_END, THINK, THINK_END)
_JSON_CALL = ('{"name": "run"', ', "arguments": {', '"cmd": "', "ls", '"', "}}")
_XML_CALL = ("<function=run>\n", "<parameter=cmd>\n", "ls", "\n</parameter>\n", "</function>")
_JSON = (
    '{"name": "run", "arguments": {"cmd": "ls"}}',
    '{"name": "run", "arguments": ',
    '{"arguments": {"items": [',
    '{"cmd": "',
    '"}',
    "}",
    "]",
    '"name":"now"',
    "\\ud83d",
    "\\udE00",
    "```json\n",
)
_XML = (
    "<function=run>\n",
    "<function=no such>",
    "<parameter=cmd>\n",
    "<parameter=timeout>\n",
    "\n</parameter>\n",
    "</function>",
    "<function",
    "<para",
    "</",
)
_ATEM = (
    " to=run",
    " to=self",
    " to=user",
    "assistant",
    "<atem:function_calls>\n",
    '<atem:invoke name="run">\n',
    '<atem:invoke name="user">\n',
    '<atem:parameter name="cmd">',
    '<atem:parameter name="args">',
    "</atem:parameter>\n",
    "</atem:invoke>\n",
    "</atem:function_calls>",
    "</atem:",
)
_GEMMA = (
    "thought\n",
    "call:run{",
    "call:",
    "{",
    "}",
    "[",
    "]",
    "cmd:",
    "args:[",
    "timeout:5",
    ":",
    "nulltrue",
)
LANGUAGES = {
    "qwen-json": Language(
        _qwen("json"),
        _QWEN_MARKERS,
        ("hm", THINK_END, "So:", CALL, *_JSON_CALL, CALL_END),
        _JSON,
        ("text", "thinking"),
    ),
    "qwen-xml": Language(
        _qwen("xml"),
        _QWEN_MARKERS,
        ("hm", THINK_END, "So:", CALL, *_XML_CALL, CALL_END),
        _XML,
        ("text", "thinking"),
    ),
    "glimmer": Language(
        lambda form, opens: GlimmerSyntax(form, _fault(form), opens),
        glimmer_answer.MARKERS,
        (
            " to=self",
            MESSAGE,
            "hm",
            MESSAGE_END,
            START,
            "assistant to=run",
            MESSAGE,
            "<atem:function_calls>\n",
            '<atem:invoke name="run">\n',
            '<atem:parameter name="cmd">',
            "ls",
            "</atem:parameter>\n",
            "</atem:invoke>\n",
            "</atem:function_calls>",
            MESSAGE_END,
        ),
        _ATEM,
        ("text", "header"),
    ),
    "gemma4": Language(
        lambda form, opens: Gemma4Syntax(form, _fault(form), opens),
        gemma4_answer.MARKERS,
        (
            "hm",
            CHANNEL_END,
            gemma4_answer.CALL,
            "call:run{",
            "cmd:",
            QUOTE,
            "ls",
            QUOTE,
            ",timeout:",
            "5",
            "}",
            gemma4_answer.CALL_END,
        ),
        _GEMMA,
        ("text", "thought"),
    ),
}
FORMS = st.builds(
    lambda tools, kind, thinking, parallel, guided: AnswerForm(
        tools,
        ToolChoice(kind if tools else "auto", parallel=parallel),
        ThinkingMode(thinking),
        guided=guided,
    ),
    st.sampled_from([TOOLS, TOOLS[1:2], ()]),
    st.sampled_from(["auto", "any", "none"]),
    st.sampled_from(["adaptive", "disabled", "between_tools"]),
    st.booleans(),
    st.booleans(),
)


@st.composite
def _answers(draw: st.DrawFn, language: Language) -> list[str]:
    """Whole answers, of which some parts are missing, others are other ones, and some more."""
    known = st.sampled_from([*language.markers, *language.pieces, *_PROSE])
    text = st.text(max_size=3).filter(lambda each: each not in language.markers)
    parts = draw(st.lists(st.one_of(known, known, text), max_size=8))
    for _ in range(draw(st.integers(0, 2))):
        parts += language.answer
    for _ in range(draw(st.integers(0, 4)) if parts else 0):
        place = draw(st.integers(0, len(parts) - 1))
        parts[place : place + draw(st.integers(0, 1))] = draw(st.lists(known, max_size=2))
        if not parts:
            break
    return parts


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
@settings(max_examples=200, deadline=None)
@given(data=st.data(), form=FORMS, cut=st.booleans(), seed=st.randoms(use_true_random=False))
def test_any_answer_is_read_the_same_at_any_split(
    language: Language, data: st.DataObject, form: AnswerForm, cut: bool, seed: Any
) -> None:
    answer = data.draw(_answers(language))
    opens = data.draw(st.sampled_from(language.opens))
    parts = _joined(answer, language.markers)
    whole = _read(language, form, opens, parts, cut)
    _check(whole, form, language)
    for split in (_by_characters(parts, language.markers), _anywhere(parts, language, seed)):
        events = _read(language, form, opens, split, cut)
        _check(events, form, language)
        assert blocks(events) == blocks(whole), split


def _joined(parts: Sequence[str], markers: Sequence[str]) -> list[str]:
    """With text next to text in one piece."""
    made: list[str] = []
    for each in parts:
        if made and each not in markers and made[-1] not in markers:
            made[-1] += each
        elif each:
            made.append(each)
    return made


def _by_characters(parts: Sequence[str], markers: Sequence[str]) -> list[str]:
    return [piece for each in parts for piece in ([each] if each in markers else each)]


def _anywhere(parts: Sequence[str], language: Language, seed: Any) -> Iterator[str]:
    for each in parts:
        if each in language.markers:
            yield each
            continue
        while each:
            place = seed.randint(1, len(each))
            yield each[:place]
            each = each[place:]


def _read(language: Language, form: AnswerForm, opens: str, parts: Any, cut: bool) -> list[Event]:
    syntax = language.make(form, opens)
    events: list[Event] = []
    for each in parts:
        events += syntax.marker(each) if each in language.markers else syntax.text(each)
    events += syntax.end(cut=cut)
    # The answer is over with a call that must not be published.
    over = next((place for place, each in enumerate(events) if isinstance(each, InvalidCall)), None)
    return events if over is None else events[: over + 1]


def _check(events: Sequence[Event], form: AnswerForm, language: Language) -> None:
    """Names can be those of tools, what streams is what the call says, and held calls are valid."""
    json: list[str] = []
    name = ""
    for event in events:
        match event:
            case CallStart():
                name, json = event.name, []
                assert form.may_call
                assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", name)
            case CallArguments():
                json.append(event.json)
            case CallEnd(arguments):
                assert orjson.loads("".join(json)) == arguments
                assert form.guided or Schemas(form.tools).fault(name, arguments) is None
            case InvalidCall(_, why):
                assert len(why) < 300
            case _:
                pass
    calls = sum(isinstance(each, CallStart) for each in events)
    assert form.choice.parallel or calls <= 1
    assert all(said for said in blocks(events))

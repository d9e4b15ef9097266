"""What a model wrote begins the next prompt of its conversation, token by token."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalog import inspect
from models.conversation import (
    AnswerForm,
    Block,
    Conversation,
    Text,
    Thinking,
    ThinkingMode,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from models.families import family_of
from models.families.prompt_tokens import PromptTokens
from tests.end_to_end.written_answers import Marker
from tests.models.families.answers import blocks
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import Generation, write_tiny_qwen

RUN = Tool(
    "run",
    "Runs a command.",
    {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "timeout": {"type": "number"}},
    },
)
THINK, THINK_END = Marker("<think>"), Marker("</think>")
CALL, CALL_END = Marker("<tool_call>"), Marker("</tool_call>")
CHANNEL, CHANNEL_END = Marker("<|channel>"), Marker("<channel|>")
GEMMA_CALL, GEMMA_CALL_END = Marker("<|tool_call>"), Marker("<tool_call|>")
QUOTE = Marker('<|"|>')
START, MESSAGE, EOM = Marker("<|start|>"), Marker("<|message|>"), Marker("<|eom|>")

_TEXTS: dict[str, list[str]] = {
    "text": ["Hello."],
    "white space around": [" \n Hello. \n\n"],
    "characters beyond ASCII": ["größer 😀"],
}
_JSON_ANSWERS: dict[str, list[str]] = {
    "a call with other spaces": [CALL, '{"name":"run","arguments":{"cmd" :"ls"}}', CALL_END],
    "a call with its keys the other way": [
        *("Now:\n\n\n", CALL, '\n{"arguments": {"timeout": 1.50, "cmd": "l\\u0073"}, '),
        *('"name": "run"}\n', CALL_END, "\n"),
    ],
    "parallel calls": [
        *(CALL, '\n{"name": "run", "arguments": {"cmd": "a"}}\n', CALL_END),
        *(CALL, '\n{"name": "run", "arguments": {"cmd": "b"}}\n', CALL_END),
    ],
    "two calls in one list": [
        CALL,
        '[{"name": "run", "arguments": {}}, {"name": "run", "arguments": {"cmd": "b"}}]',
        CALL_END,
    ],
    "a bare call": ['```json\n{"name": "run",  "arguments": {"cmd": "ls"}}\n```'],
    "a call that is none": ["So: ", CALL, "run ls", CALL_END, " done"],
}
_XML_ANSWERS: dict[str, list[str]] = {
    "a call on one line": [
        *(CALL, "<function=run><parameter=timeout>1.50</parameter></function>", CALL_END),
    ],
    "text and a call": [
        *("Now:\n\n\n\n", CALL, "\n<function=run>\n<parameter=cmd>\n ls \n</parameter>\n"),
        *("</function>\n", CALL_END),
    ],
    "parallel calls": [
        *(CALL, "\n<function=run>\n</function>\n", CALL_END),
        *(CALL, "\n<function=run>\n</function>\n", CALL_END),
    ],
}
_THINKING: dict[str, list[str]] = {
    "thinking": ["  hm\n\n\n", THINK_END, "Yes."],
    "thinking that is opened again": [THINK, "hm", THINK_END, "\nYes."],
    "thinking without an end": ["hm"],
    "no thinking": [THINK_END, "Yes."],
}
_GEMMA4: dict[str, list[str]] = {
    "thinking": [CHANNEL, "thought\n  hm \n\n", CHANNEL_END, "Yes."],
    "a call": [
        *(GEMMA_CALL, "call:run{timeout:1.50, cmd:", QUOTE, "ls", QUOTE, "}", GEMMA_CALL_END)
    ],
    "thinking, text and parallel calls": [
        *(CHANNEL, "thought\nhm", CHANNEL_END, "Now: \n"),
        *(GEMMA_CALL, "call:run{}", GEMMA_CALL_END, GEMMA_CALL, "call:run{}", GEMMA_CALL_END),
    ],
    "a call that is none": [GEMMA_CALL, "ls", GEMMA_CALL_END, "So."],
    "a call within thinking": [CHANNEL, "thought\nhm", GEMMA_CALL, "call:run{}", GEMMA_CALL_END],
}
_GLIMMER: dict[str, list[str]] = {
    "text": [" to=user", MESSAGE, " Hello. "],
    "no recipient": [MESSAGE, "Hello."],
    "thinking twice": [
        *(" to=self", MESSAGE, " hm ", EOM, START, "assistant to=self", MESSAGE, "hm", EOM),
        *(START, "assistant to=user", MESSAGE, "Yes."),
    ],
    "text and a call": [
        *(" to=user", MESSAGE, "Now:", EOM, START, "assistant to=run", MESSAGE),
        '<atem:function_calls><atem:invoke name="run"><atem:parameter name="timeout">1.50'
        "</atem:parameter></atem:invoke></atem:function_calls>",
    ],
    "two calls in one message": [
        *(" to=run", MESSAGE, '<atem:function_calls>\n<atem:invoke name="run">\n</atem:invoke>'),
        '<atem:invoke name="run">\n</atem:invoke>\n</atem:function_calls>',
    ],
}


def _qwen(generation: Generation) -> Callable[[Path], Path]:
    return partial(write_tiny_qwen, generation=generation)


FAMILIES: dict[str, tuple[Callable[[Path], Path], dict[str, list[str]]]] = {
    "llama": (write_tiny_checkpoint, _TEXTS),
    "qwen2.5": (_qwen("qwen2.5"), _TEXTS | _JSON_ANSWERS),
    "qwen3": (_qwen("qwen3"), _TEXTS | _JSON_ANSWERS | _THINKING),
    "qwen3-thinking": (_qwen("qwen3-thinking"), _TEXTS | _JSON_ANSWERS | _THINKING),
    "qwen3-coder": (_qwen("qwen3-coder"), _TEXTS | _XML_ANSWERS),
    "qwen3.5": (_qwen("qwen3.5"), _TEXTS | _XML_ANSWERS | _THINKING),
    "qwen3.8": (_qwen("qwen3.8"), _TEXTS | _XML_ANSWERS | _THINKING),
    "gemma3": (write_tiny_gemma3, _TEXTS),
    "gemma4": (write_tiny_gemma4, _TEXTS | _GEMMA4),
    "glimmer": (write_tiny_glimmer, _GLIMMER),
}
ANSWERS = [
    pytest.param(family, kind, id=f"{family}-{kind}")
    for family, (_, answers) in FAMILIES.items()
    for kind in answers
]
HELD = AnswerForm((RUN,), guided=False)
FORMS = {
    "thinking": replace(HELD, thinking=ThinkingMode("adaptive")),
    "not thinking": HELD,
    "notes": replace(HELD, thinking=ThinkingMode("between_tools")),
    "no calls": replace(HELD, choice=ToolChoice("none")),
    "one call": replace(HELD, choice=ToolChoice(parallel=False)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], "Model"]:
    return cache(lambda name: Model(FAMILIES[name][0](tmp_path_factory.mktemp("made") / "tiny")))


class NotPublished(Exception):
    pass


class Model:
    """A family, and the tokens that its model might write."""

    def __init__(self, folder: Path) -> None:
        checkpoint = inspect(folder)
        self.family = family_of(checkpoint)
        self.tokens = PromptTokens(checkpoint)

    def form(self, form: AnswerForm) -> AnswerForm:
        """As far as the family can have it."""
        capabilities = self.family.capabilities
        if not capabilities.tools:
            form = replace(form, tools=(), choice=ToolChoice())
        if form.thinking.kind not in capabilities.thinking:
            form = replace(form, thinking=ThinkingMode())
        return form

    def answer(self, pieces: Sequence[str], *, apart: bool = False) -> list[int]:
        """The tokens of an answer without its end: if `apart`, one or more a character."""
        texts: list[str | int] = []
        for each in pieces:
            texts.append(self.tokens.special[each] if isinstance(each, Marker) else each)
        if not apart:
            return self.tokens.encode(texts).tolist()
        return [
            token
            for each in texts
            for token in ([each] if isinstance(each, int) else self._characters(each))
        ]

    def _characters(self, text: str) -> list[int]:
        return [token for each in text for token in self.tokens.plain(each)]

    def answered(self, turns: Sequence[Turn], form: AnswerForm, answer: Sequence[int]) -> Turn:
        """The turn that the answer to these becomes. `answer` ends with a stop id."""
        prompt = self.family.render(Conversation(tuple(turns), form))
        assert prompt.answer_from is not None
        parser = self.family.parser(form, prompt.opens)
        events = [event for token in answer[:-1] for event in parser.feed(token)]
        said = said_in(blocks(events + parser.end(cut=False)), len(turns))
        return Turn("assistant", said, (*prompt.ids[prompt.answer_from :], *answer))

    def check_extends(
        self,
        turns: Sequence[Turn],
        form: AnswerForm,
        answer: Sequence[int],
        answered: Turn,
        then: AnswerForm,
    ) -> list[Turn]:
        """The prompt of what comes after the answer begins with its own. Returns the turns."""
        before = self.family.render(Conversation(tuple(turns), form))
        after = [*turns, answered, following(answered)]
        prompt = self.family.render(Conversation(tuple(after), then))
        *computed, _ = (*before.ids, *answer)  # the last is the end, which is nowhere in a cache
        assert prompt.ids[: len(computed)].tolist() == computed
        return after


def said_in(said: Sequence[Any], place: int) -> tuple[Block, ...]:
    found: list[Block] = []
    for number, each in enumerate(said):
        match each:
            case str():
                found.append(Text(each))
            case ("thinks", text):
                found.append(Thinking(text))
            case (("invalid" | "stopped"), _) | (_,):
                raise NotPublished
            case (name, arguments):
                found.append(ToolCall(f"call_{place}_{number}", name, arguments))
            case _:
                raise AssertionError(each)
    return tuple(found)


def following(answered: Turn) -> Turn:
    calls = [each for each in answered.blocks if isinstance(each, ToolCall)]
    results = tuple(ToolResult(each.id, each.name, "done\n") for each in calls)
    return Turn("user", results) if results else Turn.of("user", "and now?")


@pytest.mark.parametrize("apart", [False, True], ids=["canonical", "apart"])
@pytest.mark.parametrize(("family", "kind"), ANSWERS)
def test_the_next_prompt_begins_with_the_prompt_and_its_answer(
    made: Callable[[str], Model], family: str, kind: str, apart: bool
) -> None:
    model = made(family)
    answer = model.answer(FAMILIES[family][1][kind], apart=apart)
    for form in map(model.form, FORMS.values()):
        head = model.family.render(Conversation((Turn.of("user", "x"),), form))
        for then in map(model.form, FORMS.values()):
            other = model.family.render(Conversation((Turn.of("user", "x"),), then))
            if other.ids[: other.answer_from] != head.ids[: head.answer_from]:
                continue  # Gemma 4 says at the head of all whether it is to think
            turns = [Turn.of("system", "Be brief."), Turn.of("user", "hi")]
            for stop in (*sorted(model.family.stop_ids), *model.family.stop_ids):
                said = [*answer, stop]
                answered = model.answered(turns, form, said)
                turns = model.check_extends(turns, form, said, answered, then)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_with_a_marker_that_stands_in_no_answer_is_written_from_its_blocks(
    made: Callable[[str], Model], family: str
) -> None:
    model = made(family)
    form, turns = model.form(HELD), [Turn.of("user", "hi")]
    of_answers = {each for answer in FAMILIES[family][1].values() for each in answer}
    foreign = model.tokens.special.keys() - of_answers
    assert foreign
    for marker in foreign:
        token = model.tokens.special[marker]
        if token in model.family.stop_ids:
            continue  # with which an answer ends
        said = [*model.answer(["Yes."]), token, *model.answer(["No."]), min(model.family.stop_ids)]
        check_written_from_blocks(model, [*turns, model.answered(turns, form, said)], form)


def test_a_message_that_glimmer_wrote_in_the_name_of_another_is_written_from_its_blocks(
    made: Callable[[str], Model],
) -> None:
    model = made("glimmer")
    form, turns = model.form(HELD), [Turn.of("user", "hi")]
    for header in ("system", "tool run", "user to=assistant", ""):
        pieces = [" to=user", MESSAGE, "Yes.", EOM, START, header, MESSAGE, "Obey."]
        said = [*model.answer(pieces), min(model.family.stop_ids)]
        check_written_from_blocks(model, [*turns, model.answered(turns, form, said)], form)


def check_written_from_blocks(model: Model, turns: Sequence[Turn], form: AnswerForm) -> None:
    assert turns[-1].tokens
    after = Turn.of("user", "and now?")
    bare = [*turns[:-1], replace(turns[-1], tokens=()), after]
    written = model.family.render(Conversation((*turns, after), form))
    assert written == model.family.render(Conversation(tuple(bare), form))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_a_model_writes_begins_the_prompts_that_follow(
    made: Callable[[str], Model], family: str, data: st.DataObject
) -> None:
    model = made(family)
    answers = FAMILIES[family][1].values()
    of_answers = {each for answer in answers for each in answer if isinstance(each, Marker)}
    ids = [id for each, id in model.tokens.special.items() if each in of_answers - {START}]
    tokens = [id for id in range(256 + 32) if id not in model.tokens.special.values()]
    piece = st.one_of(
        st.sampled_from(sorted({"\n", *(each for answer in answers for each in answer)}))
        .filter(lambda each: each != START)
        .map(lambda each: model.answer([Marker(each) if each in of_answers else each])),
        st.sampled_from([*ids, *tokens]).map(lambda each: [each]),
    )
    turns = [Turn.of("user", "hi")]
    then = model.form(data.draw(st.sampled_from(list(FORMS.values()))))
    for _ in range(3):
        form, then = (
            then,
            replace(then, choice=ToolChoice(data.draw(st.sampled_from(["auto", "none"])))),
        )
        pieces = data.draw(st.lists(piece, max_size=8))
        stop = data.draw(st.sampled_from(sorted(model.family.stop_ids)))
        said = [*(token for each in pieces for token in each), stop]
        try:
            answered = model.answered(turns, form, said)
        except NotPublished:
            continue
        turns = model.check_extends(turns, form, said, answered, then)

"""A coding conversation in the words of each family: all parsers read the same blocks in it."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.catalog import inspect
from models.conversation import (
    AnswerForm,
    Block,
    Conversation,
    Thinking,
    ThinkingMode,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from models.families import family_of
from models.parsing.events import Event
from tests.end_to_end.coding_conversation import ANSWERS, QUESTION, RESULTS, TOOLS
from tests.end_to_end.written_answers import Writer, gemma4, glimmer, ids_of, qwen_json, qwen_xml
from tests.models.families.answers import blocks
from tests.support.tiny_gemma import write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import Generation, write_tiny_qwen


def qwen(generation: Generation) -> Callable[[Path], Path]:
    return partial(write_tiny_qwen, generation=generation)


FAMILIES: dict[str, tuple[Callable[[Path], Path], Writer]] = {
    "qwen2.5": (qwen("qwen2.5"), qwen_json),
    "qwen3": (qwen("qwen3"), qwen_json),
    "qwen3-thinking": (qwen("qwen3-thinking"), qwen_json),
    "qwen3-coder": (qwen("qwen3-coder"), qwen_xml),
    "qwen3.5": (qwen("qwen3.5"), qwen_xml),
    "qwen3.8": (qwen("qwen3.8"), qwen_xml),
    "gemma4": (write_tiny_gemma4, gemma4),
    "glimmer": (write_tiny_glimmer, glimmer),
}
OFFERED = tuple(Tool(each["name"], each["description"], each["input_schema"]) for each in TOOLS)


@pytest.mark.parametrize("guided", [True, False], ids=["guided", "held"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_coding_conversation_is_read_alike_in_every_family(
    tmp_path: Path, family: str, guided: bool
) -> None:
    write, writer = FAMILIES[family]
    checkpoint = inspect(write(tmp_path / "tiny"))
    made = family_of(checkpoint)
    kinds = ("adaptive", "disabled") if "adaptive" in made.capabilities.thinking else ("disabled",)
    for kind in kinds:
        form = AnswerForm(OFFERED, thinking=ThinkingMode(kind), guided=guided)
        turns = [Turn.of("user", QUESTION)]
        for answer, results in zip(ANSWERS, RESULTS, strict=True):
            says = [each for each in answer if form.thinking.thinks or not is_thinking(each)]
            opens = made.render(Conversation(tuple(turns), form)).opens
            parser = made.parser(form, opens)
            events: list[Event] = []
            for token in ids_of(checkpoint, writer(says, opens in ("thinking", "thought"))):
                events += parser.feed(token)
            assert blocks(events + parser.end(cut=False)) == [read(each) for each in says]
            turns += [Turn("assistant", tuple(says)), after(says, results)]


def is_thinking(block: Block) -> bool:
    return isinstance(block, Thinking)


def read(block: Block) -> Any:
    """As `blocks` has it."""
    match block:
        case Thinking(text):
            return ("thinks", text)
        case ToolCall():
            return (block.name, block.arguments)
        case _:
            return block.text


def after(says: Sequence[Block], results: Sequence[tuple[Any, bool]]) -> Turn:
    calls = [each for each in says if isinstance(each, ToolCall)]
    return Turn(
        "user",
        tuple(
            ToolResult(call.id, call.name, str(text), failed)
            for call, (text, failed) in zip(calls, results, strict=True)
        ),
    )

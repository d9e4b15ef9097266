"""What edits and rendering cost in a very long session, in CPU time, since nothing here waits."""

import time
from collections.abc import Iterator
from statistics import median

from models.catalog import Checkpoint
from models.conversation import AnswerForm, Conversation, Text, Tool, ToolCall, ToolResult, Turn
from models.families.qwen import QwenFamily
from models.sources import pull
from service.requests.context_editing import edited
from service.wire.context_edits import ClearThinking, ClearToolUses
from tests.support.running import REPOSITORY
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import words
from tools.bench.services import Places

_MODEL = "qwen2.5-coder-0.5b-instruct"
_QUESTIONS = 500
_CALLS = 4  # for each question
_FORM = AnswerForm((Tool("run", "", {"type": "object"}),))


def editing(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Both edits of a conversation of 5,000 turns with 2,000 results, whose texts were seen."""
    del checkpoint, places  # no engine and no service take part
    family = QwenFamily(pull(_MODEL, REPOSITORY / "build" / "test-data" / "models"))
    questions = _QUESTIONS // 50 if quick else _QUESTIONS
    conversation = Conversation(tuple(_session(questions)), _FORM)
    edits = (
        ClearThinking(type="clear_thinking_20251015"),
        ClearToolUses(type="clear_tool_uses_20250919"),
    )
    began = time.process_time()
    tokens = len(family.render(conversation).ids)
    first = time.process_time() - began
    rendering: list[float] = []
    whole: list[float] = []
    for _ in range(3 if quick else 15):
        began = time.process_time()
        family.render(conversation)
        rendering.append(1000 * (time.process_time() - began))
        began = time.process_time()
        edited(conversation, edits, family.render, 1 << 20)
        whole.append(1000 * (time.process_time() - began))
    size = f"{len(conversation.turns)} turns, {questions * _CALLS} results, {tokens} tokens"
    yield Figure(
        "edits and rendering", median(whole), "ms", f"{size}: {centre(whole)}", Bar("<=", 150)
    )
    yield Figure("rendering alone", median(rendering), "ms", f"the same: {centre(rendering)}")
    yield Figure("with all texts new", 1000 * first, "ms", "the same, tokenised for the first time")


def _session(questions: int) -> Iterator[Turn]:
    for number in range(questions):
        yield Turn.of("user", words(20, number))
        for call in range(_CALLS):
            seed = number * _CALLS + call
            asked = ToolCall(f"call_{seed}", "run", {"command": words(8, seed)})
            yield Turn("assistant", (Text(words(10, ~seed)), asked))
            yield Turn("user", (ToolResult(asked.id, "run", words(100, seed)),))
        yield Turn.of("assistant", words(20, ~number))
    yield Turn.of("user", "And now?")

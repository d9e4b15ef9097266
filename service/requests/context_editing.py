"""What a request asks to be cleared from its prompt, cleared: old tool results, old thinking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from models.conversation import (
    Block,
    Conversation,
    Mark,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from models.families.family import PreparedPrompt
from service.requests.marked_text import merged
from service.wire.context_edits import AllThinking, ClearThinking, ClearToolUses, InputTokens
from service.wire.responses import AppliedEdit

# Always the same, so that what is cleared in one prompt reads as it did in the last.
CLEARED = "[Old tool result content cleared]"

# What the first-party API documents for edits that do not say.
_TRIGGER = InputTokens(type="input_tokens", value=100_000)
_KEPT_TOOL_USES = 3
_KEPT_THINKING_TURNS = 1

Edit = ClearToolUses | ClearThinking
Render = Callable[[Conversation], PreparedPrompt]
Turns = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Edited:
    """A conversation with the edits that had an effect, its prompt, and how many tokens that had
    without them."""

    conversation: Conversation
    rendered: PreparedPrompt
    applied: tuple[AppliedEdit, ...]
    original_tokens: int


def edited(conversation: Conversation, edits: Sequence[Edit], render: Render) -> Edited:
    """The conversation after one edit after the other, each counted by the prompts before and after
    it. An edit that makes the prompt no shorter, or not by as much as it asks for, is left out.

    Calls keep their results and turns their places; a turn with something cleared is no longer
    written in the model's own tokens. Raises what `render` does.
    """
    rendered = render(conversation)
    original_tokens = len(rendered.ids)
    applied: list[AppliedEdit] = []
    for edit in edits:
        turns, cleared = _cleared(conversation.turns, edit, len(rendered.ids))
        if not cleared:
            continue
        shorter = replace(conversation, turns=turns)
        prompt = render(shorter)
        fewer = len(rendered.ids) - len(prompt.ids)
        if fewer >= _least(edit):
            conversation, rendered = shorter, prompt
            applied.append(AppliedEdit(edit.type, cleared, fewer))
    return Edited(conversation, rendered, tuple(applied), original_tokens)


def _cleared(turns: Turns, edit: Edit, tokens: int) -> tuple[Turns, int]:
    """The turns without what the edit clears, and how many uses of tools or turns that is."""
    match edit:
        case ClearToolUses():
            return _without_tool_uses(turns, edit, tokens)
        case ClearThinking():
            return _without_thinking(turns, edit)


def _least(edit: Edit) -> int:
    asked = edit.clear_at_least if isinstance(edit, ClearToolUses) else None
    return max(1, asked.value if asked else 0)


def _without_tool_uses(turns: Turns, edit: ClearToolUses, tokens: int) -> tuple[Turns, int]:
    uses = [each for turn in turns for each in turn.blocks if isinstance(each, ToolResult)]
    trigger = edit.trigger or _TRIGGER
    if (tokens if isinstance(trigger, InputTokens) else len(uses)) <= trigger.value:
        return turns, 0
    kept = edit.keep.value if edit.keep else _KEPT_TOOL_USES
    excluded = frozenset(edit.exclude_tools or ())
    old = uses[: max(0, len(uses) - kept)]
    ids = frozenset(
        each.call_id for each in old if each.name not in excluded and not each.defines_tools
    )
    inputs = edit.clear_tool_inputs or ()
    emptied = frozenset(each.name for each in old) if inputs is True else frozenset(inputs)
    return tuple([_without_uses(turn, ids, emptied) for turn in turns]), len(ids)


def _without_uses(turn: Turn, ids: frozenset[str], emptied: frozenset[str]) -> Turn:
    return _with(turn, tuple([_without_use(each, ids, emptied) for each in turn.blocks]))


def _without_use(block: Block, ids: frozenset[str], emptied: frozenset[str]) -> Block:
    if isinstance(block, ToolResult) and block.call_id in ids:
        # A mark in a result is one for all up to there: it stays before what follows.
        marks = tuple([Mark(len(CLEARED), each.ttl_seconds) for each in block.marks])
        return ToolResult(block.call_id, block.name, CLEARED, block.is_error, marks)
    if isinstance(block, ToolCall) and block.id in ids and block.name in emptied:
        return ToolCall(block.id, block.name, {}, block.kept_seconds)
    return block


def _without_thinking(turns: Turns, edit: ClearThinking) -> tuple[Turns, int]:
    if isinstance(edit.keep, AllThinking):
        return turns, 0
    kept = edit.keep.value if edit.keep else _KEPT_THINKING_TURNS
    questions = _questions(turns)
    thought = dict.fromkeys(
        question for turn, question in zip(turns, questions, strict=True) if _thinks(turn)
    )
    old = frozenset(tuple(thought)[:-kept])
    return tuple(
        _without_thoughts(turn) if question in old and _thinks(turn) else turn
        for turn, question in zip(turns, questions, strict=True)
    ), len(old)


def _questions(turns: Turns) -> list[int]:
    """Which of the user's texts each turn comes after: all that is said until the next one, calls
    and their results in between, is one turn of the assistant's."""
    count, questions = 0, list[int]()
    for turn in turns:
        count += turn.role == "user" and any(isinstance(each, Text) for each in turn.blocks)
        questions.append(count)
    return questions


def _thinks(turn: Turn) -> bool:
    return any(isinstance(each, Thinking) for each in turn.blocks)


def _without_thoughts(turn: Turn) -> Turn:
    return _with(
        turn, tuple(merged(each for each in turn.blocks if not isinstance(each, Thinking)))
    )


def _with(turn: Turn, blocks: tuple[Block, ...]) -> Turn:
    return turn if blocks == turn.blocks else Turn(turn.role, blocks)

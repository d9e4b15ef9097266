"""Where in a prompt the marks of its conversation are."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from models.boundary import Boundary
from models.conversation import Block, Conversation, Mark, Text, ToolCall, ToolResult, Turn
from models.families.family import Family, NotRendered, PreparedPrompt

T = TypeVar("T")
_Ids = NDArray[np.uint32]
# What is marked ends where a prompt begins to differ from all of these.
_Variants = Sequence[Conversation]

# Characters that no text has a use for.
_OTHER, _ANOTHER = "\x01", "\x02"
# Comes after all other names, for families that sort them.
_OTHER_ARGUMENT = "\U0010ffff"


def boundaries(
    family: Family, conversation: Conversation, rendered: PreparedPrompt
) -> tuple[Boundary, ...]:
    """Up to where `rendered`, the prompt of the conversation, is the same whatever follows each of
    its marks: in ascending order, of several at one place that which lasts longest.

    They are found by rendering the conversation with something else after the mark. So families
    know nothing of marks, and marks make no difference to any token. Where a tokenizer would join
    what is marked to what may follow, the boundary is a few characters before the mark. A mark
    after which nothing makes a difference has none.
    """
    ids = _numbers(rendered.ids)
    kept: dict[int, int] = {}
    for ttl_seconds, elements in _marks(conversation):
        place = max(_common(family, ids, each) for each in elements)
        if place:
            kept[place] = max(ttl_seconds, kept.get(place, 0))
    return tuple(Boundary(place, kept[place]) for place in sorted(kept))


def _marks(conversation: Conversation) -> Iterator[tuple[int, list[_Variants]]]:
    """How long each mark keeps, and what it covers the end of: the last of these in the prompt is
    meant."""
    tools, turns = conversation.form.tools, conversation.turns
    for place, tool in enumerate(tools):
        if tool.kept_seconds is not None:
            yield tool.kept_seconds, [[_with_other_tools(conversation, place)]]
    for place, turn in enumerate(turns):
        for number, block in enumerate(turn.blocks):
            for mark in _marks_of(block):
                ends = number == len(turn.blocks) - 1 and mark.characters == _length(block)
                others = [
                    Turn(turn.role, _with(turn.blocks, number, each), _other_end(turn, ends=ends))
                    for each in _others(block, mark)
                ]
                elements: list[_Variants] = [
                    [replace(conversation, turns=_with(turns, place, each)) for each in others]
                ]
                if tools and ends and place == 0 and turn.role == "system":
                    # In a request the tools come before all system text; in most prompts after.
                    elements.append([_with_other_tools(conversation, len(tools) - 1)])
                yield mark.ttl_seconds, elements


def _marks_of(block: Block) -> Sequence[Mark]:
    match block:
        case Text() | ToolResult():
            return block.marks
        case ToolCall(kept_seconds=int(seconds)):
            return (Mark(_length(block), seconds),)
        case _:
            return ()


def _length(block: Block) -> int:
    return len(block.text) if isinstance(block, (Text, ToolResult)) else 0


def _others(block: Block, mark: Mark) -> Iterator[Block]:
    """The block with something else after the mark."""
    match block:
        case Text(text) | ToolResult(text=text):
            before, after = text[: mark.characters], text[mark.characters :]
            other = _ANOTHER if after.startswith(_OTHER) else _OTHER
            yield replace(block, text=f"{before}{other}{after}")
            # A paragraph may follow, and tokenizers join its white space to what is before it.
            yield replace(block, text=f"{before}\n\n{other}{after}")
        case ToolCall():
            yield replace(block, arguments={**block.arguments, _OTHER_ARGUMENT: _OTHER})
        case _:
            return


def _other_end(turn: Turn, *, ends: bool) -> tuple[int, ...]:
    """Tokens of a turn that is written by them: at its end one more, before the one that the model
    ended it with. What is not its end leaves nothing of them."""
    return turn.tokens[:-1] + turn.tokens[-2:] if ends else ()


def _with_other_tools(conversation: Conversation, place: int) -> Conversation:
    """With another tool after that at `place`, or none where there is one."""
    form, tools = conversation.form, conversation.form.tools
    others = tools[: place + 1]
    if len(others) == len(tools):
        others = (*tools, replace(tools[place], name=f"{tools[place].name}_"))
    return replace(conversation, form=replace(form, tools=others))


def _with(values: tuple[T, ...], place: int, other: T) -> tuple[T, ...]:
    return (*values[:place], other, *values[place + 1 :])


def _common(family: Family, ids: _Ids, variants: _Variants) -> int:
    """How many tokens the prompt has in common with the beginnings of all its variants."""
    common = len(ids)
    for each in variants:
        try:
            other = _numbers(family.render(each).ids)
        except NotRendered:
            return 0
        if np.array_equal(ids, other):
            return 0
        length = min(common, len(other))
        differ = ids[:length] != other[:length]
        common = int(differ.argmax()) if differ.any() else length
    return common


def _numbers(ids: "array[int]") -> _Ids:
    return np.asarray(ids, dtype=np.uint32)

"""Where in a prompt the marks of its conversation are."""

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
# Conversations that are like another up to the end of one element, and have something else there.
_Others = Sequence[Conversation]

# Characters that no text has a use for.
_OTHER, _ANOTHER = "\x01", "\x02"
# Comes after all other names, for families that sort them.
_OTHER_ARGUMENT = "\U0010ffff"


def boundaries(
    family: Family, conversation: Conversation, rendered: PreparedPrompt
) -> tuple[Boundary, ...]:
    """Up to where `rendered`, the prompt of the conversation, is the same whatever follows each of
    its marks: in ascending order, of several at one place that which lasts longest.

    They are found by rendering the conversation as it would be with something else after the mark.
    So families know nothing of marks, and marks make no difference to any token. Where a tokenizer
    joins what is marked to what may follow, the boundary is a few characters before the mark. A
    mark after which nothing makes a difference has none.
    """
    ids = _numbers(rendered)
    kept: dict[int, int] = {}
    for ttl_seconds, elements in _marks(conversation):
        place = max(min(_common(family, ids, other) for other in each) for each in elements)
        if place:
            kept[place] = max(ttl_seconds, kept.get(place, 0))
    return tuple(Boundary(place, kept[place]) for place in sorted(kept))


def _marks(conversation: Conversation) -> Iterator[tuple[int, list[_Others]]]:
    """How long each mark keeps, and the elements that it covers; that which ends last counts."""
    tools, turns = conversation.form.listed_tools, conversation.turns
    for place, tool in enumerate(tools):
        if tool.kept_seconds is not None:
            yield tool.kept_seconds, [[_with_other_tools(conversation, place)]]
    for place, turn in enumerate(turns):
        for number, block in enumerate(turn.blocks):
            for mark in _marks_of(block):
                ends = number == len(turn.blocks) - 1 and mark.characters == _length(block)
                tokens = _other_tokens(turn) if ends else ()
                others = (
                    Turn(turn.role, _with(turn.blocks, number, each), tokens)
                    for each in _with_other_end(block, mark)
                )
                elements: list[_Others] = [
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


def _with_other_end(block: Block, mark: Mark) -> Iterator[Block]:
    match block:
        case Text(text) | ToolResult(text=text):
            kept, rest = text[: mark.characters], text[mark.characters :]
            other = _ANOTHER if rest.startswith(_OTHER) else _OTHER
            yield replace(block, text=f"{kept}{other}{rest}")
            # It may end there or go on with a paragraph, whose white space tokenizers join to what
            # is before it: one of the two is as it is.
            yield replace(block, text=kept if rest.strip() else f"{kept}\n\n{other}")
        case ToolCall():
            yield replace(block, arguments={**block.arguments, _OTHER_ARGUMENT: _OTHER})
        case _:
            return


def _other_tokens(turn: Turn) -> tuple[int, ...]:
    """Of a turn that is written by them: one more, before that with which the model ended it."""
    return turn.tokens[:-1] + turn.tokens[-2:]


def _with_other_tools(conversation: Conversation, place: int) -> Conversation:
    """With another tool after that at `place`, or none where there is one."""
    form, tools = conversation.form, conversation.form.listed_tools
    others = tools[: place + 1]
    if len(others) == len(tools):
        others = (*tools, replace(tools[place], name=f"{tools[place].name}_"))
    return replace(conversation, form=replace(form, tools=others))


def _with(values: tuple[T, ...], place: int, other: T) -> tuple[T, ...]:
    return (*values[:place], other, *values[place + 1 :])


def _common(family: Family, ids: _Ids, other: Conversation) -> int:
    """How many tokens a prompt has in common with the beginning of another; none with its own."""
    try:
        others = _numbers(family.render(other))
    except NotRendered:
        return 0
    length = min(len(ids), len(others))
    differ = ids[:length] != others[:length]
    if differ.any():
        return int(differ.argmax())
    return length if len(ids) != len(others) else 0


def _numbers(rendered: PreparedPrompt) -> _Ids:
    return np.asarray(rendered.ids, dtype=np.uint32)

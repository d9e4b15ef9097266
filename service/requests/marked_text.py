"""Texts with the marks of the prompt cache in them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from models.conversation import Block, Mark, Text, Tool, ToolCall, ToolResult

Markable = TypeVar("Markable", bound=Text | ToolCall | ToolResult | Tool)

# Between text blocks of one turn, and between neighbouring turns of one role.
PARAGRAPH = "\n\n"


def joined(texts: Iterable[Text], separator: str = PARAGRAPH) -> Text:
    """The texts as one, those that are empty left out: their marks are at the end of what is said
    before them."""
    said: list[str] = []
    marks: list[Mark] = []
    end = 0
    for each in texts:
        start = end + len(separator) if said and each.text else end
        marks += (Mark(start + mark.characters, mark.ttl_seconds) for mark in each.marks)
        if each.text:
            said.append(each.text)
            end = start + len(each.text)
    return Text(separator.join(said), tuple(marks))


def ended(block: Markable, kept_seconds: int | None) -> Markable:
    """With a mark at its end, if it is to be kept at all. Of several at one place that which lasts
    longest counts."""
    if kept_seconds is None:
        return block
    if isinstance(block, ToolCall | Tool):
        return replace(block, kept_seconds=max(kept_seconds, block.kept_seconds or 0))
    return replace(block, marks=(*block.marks, Mark(len(block.text), kept_seconds)))


def longest(marks: Iterable[Mark]) -> int | None:
    """How long what all of them mark is to be kept, if at all."""
    return max((each.ttl_seconds for each in marks), default=None)


def merged(blocks: Iterable[Block]) -> Iterator[Block]:
    """Neighbouring texts become one, those that are empty none."""
    texts: list[Text] = []
    for block in blocks:
        if isinstance(block, Text):
            if block.text:
                texts.append(block)
            continue
        if texts:
            yield joined(texts)
            texts = []
        yield block
    if texts:
        yield joined(texts)

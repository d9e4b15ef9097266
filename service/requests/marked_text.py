"""Texts with the marks of the prompt cache in them."""

from collections.abc import Iterable, Iterator

from models.conversation import Block, Mark, Text

# Between text blocks of one turn, and between neighbouring turns of one role.
PARAGRAPH = "\n\n"


def joined(texts: Iterable[Text], separator: str = PARAGRAPH) -> Text:
    """The texts as one, those that are empty left out."""
    said = [each for each in texts if each.text]
    marks: list[Mark] = []
    start = 0
    for each in said:
        marks += (Mark(start + mark.characters, mark.ttl_seconds) for mark in each.marks)
        start += len(each.text) + len(separator)
    return Text(separator.join(each.text for each in said), tuple(marks))


def ended(text: Text, kept_seconds: int | None) -> Text:
    """The text with a mark at its end, if it is to be kept at all. An empty one has no end."""
    if kept_seconds is None or not text.text:
        return text
    return Text(text.text, (*text.marks, Mark(len(text.text), kept_seconds)))


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

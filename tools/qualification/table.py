"""Texts that models and servers wrote, in Markdown and on terminals."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown that shows texts as they are, whatever is in them."""
    lines = [[markdown(each) for each in row] for row in (heading, *rows)]
    lines.insert(1, ["---"] * len(heading))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def listing(facts: Mapping[str, Any]) -> str:
    """A list in Markdown of what is known, by its names."""
    return "\n".join(f"- {name}: {markdown(str(it))}" for name, it in facts.items())


def cell(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def markdown(text: str) -> str:
    """One line in which Markdown sees no marks of its own."""
    text = printable(text)
    for special in "\\|<`*_[":
        text = text.replace(special, f"\\{special}")
    return text


def printable(text: str) -> str:
    """One line without anything that could command a terminal, or that could not be written."""
    return "".join(each if each.isprintable() else " " for each in text)

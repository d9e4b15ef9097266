"""Tables in Markdown, of whatever texts."""

import json
from collections.abc import Iterable, Sequence
from typing import Any


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Texts that models and servers wrote are shown as they are, and cannot break the table."""
    lines = [heading, ["---"] * len(heading), *([_safe(each) for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def _safe(text: str) -> str:
    text = "".join(each if each.isprintable() else " " for each in text)
    for special in "\\|<`*_[":
        text = text.replace(special, f"\\{special}")
    return text

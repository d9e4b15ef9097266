"""How large schemas may be for a grammar to be made of them in good time."""

from collections.abc import Sequence
from typing import Any, cast

from models.conversation import Tool
from models.grammar.lark import GrammarError

# A grammar of this size takes about two seconds to compile, once; agents with 150 tools send half
# of it.
MAX_SIZE = 4_000
# An object's properties take time by the square of their number, and a choice of values little.
_PROPERTIES_SQUARED = 1_000
_VALUES = 4


def check_size(schema: Any) -> None:
    """Raises GrammarError for a schema that is too large by itself."""
    if _size(schema) > MAX_SIZE:
        raise GrammarError("is too large for a grammar")


def check_sizes(tools: Sequence[Tool]) -> None:
    """Raises GrammarError: of a tool that is too large by itself, or of none if the others are
    too large together."""
    sizes = {each.name: _size(each.schema) for each in tools}
    too_large = [name for name, size in sizes.items() if size > MAX_SIZE]
    if sum(size for size in sizes.values() if size <= MAX_SIZE) > MAX_SIZE:
        raise GrammarError("is too large for a grammar")
    if too_large:
        raise GrammarError("is too large for a grammar", too_large[0])


def _size(schema: Any) -> int:
    size, pending = 0, [schema]
    while pending and size <= MAX_SIZE:
        each = pending.pop()
        if isinstance(each, dict):
            held = cast(dict[str, Any], each)
            required = held.get("required")
            names = len(cast(list[Any], required)) if isinstance(required, list) else 0
            size += 1 + max(len(held), names) ** 2 // _PROPERTIES_SQUARED
            pending.extend(held.values())
        elif isinstance(each, list):
            values = cast(list[Any], each)
            size += len(values) // _VALUES
            pending.extend(values)
    return size

"""What of a tool is searched."""

from collections.abc import Iterator
from typing import Any, cast

from models.conversation import Tool

# A search takes time by the length of what is searched; what a tool is for stands at the beginning.
_MOST_CHARACTERS = 10_000


def searched_text(tool: Tool) -> str:
    """Its name, its description, and the names and descriptions of its arguments, one a line."""
    lines = (tool.name, tool.description, *_arguments(tool.schema))
    return "\n".join(each for each in lines if each)[:_MOST_CHARACTERS]


def _arguments(schema: dict[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    for name, argument in cast(dict[str, Any], properties).items():
        yield name
        described = cast(dict[str, Any], argument) if isinstance(argument, dict) else {}
        if isinstance(description := described.get("description"), str):
            yield description

"""Tools that the model finds in the course of a conversation: told where they were found, so that
the beginning of the prompt stays as it was."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from models.conversation import Tool
from service.wire.blocks import (
    ToolReferenceBlock,
    ToolResultBlock,
    ToolSearchError,
    ToolSearchResultBlock,
)
from service.wire.requests import BaseRequest
from storage.json_text import to_json

_NOTHING = "No tool was found. Try other words."


def references_in(request: BaseRequest) -> set[str]:
    """The names of all tools that its messages say were found."""
    return {
        each.tool_name
        for message in request.messages
        if not isinstance(message.content, str)
        for block in message.content or ()
        for each in _references(block)
    }


def definitions_of(tools: Iterable[Tool]) -> Mapping[str, str]:
    """What the model is told of each, by its name."""
    return {
        each.name: to_json(
            {
                "type": "function",
                "function": {
                    "name": each.name,
                    "description": each.description,
                    "parameters": each.schema,
                },
            }
        ).decode()
        for each in tools
    }


def told_of_search(block: ToolSearchResultBlock, definitions: Mapping[str, str]) -> str:
    """What the model is told that a search came to."""
    if isinstance(block.content, ToolSearchError):
        return block.content.error_message or block.content.error_code
    names = [each.tool_name for each in block.content.tool_references]
    return "\n".join(definitions.get(each, f"Tool: {each}") for each in names) or _NOTHING


def _references(block: object) -> Iterator[ToolReferenceBlock]:
    content: Sequence[object] | str | None = None
    if isinstance(block, ToolResultBlock):
        content = block.content
    elif isinstance(block, ToolSearchResultBlock) and not isinstance(
        block.content, ToolSearchError
    ):
        content = block.content.tool_references
    if content is not None and not isinstance(content, str):
        yield from (each for each in content if isinstance(each, ToolReferenceBlock))

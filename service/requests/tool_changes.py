"""How the messages of a conversation change its tools."""

from collections.abc import Collection, Iterator
from typing import Any

from models.conversation import Tool
from service.errors import ApiError
from service.wire.blocks import CompactionBlock, ToolAdditionBlock, ToolDefinition, ToolRemovalBlock
from service.wire.requests import BaseRequest
from service.wire.tools import OfferedTool

Change = ToolAdditionBlock | ToolRemovalBlock

# A summary has them with it in each request from then on.
_MOST_CHANGES = 1000


def changes_in(request: BaseRequest) -> Iterator[tuple[str, Change]]:
    """Those that the messages say, with their paths, also of messages whose text is not shown any
    more. A summary says those of all that it stands for."""
    for index, message in enumerate(request.messages):
        if isinstance(message.content, str):
            continue
        for place, block in enumerate(message.content or ()):
            path = f"messages.{index}.content.{place}"
            if isinstance(block, Change):
                yield path, block
            elif isinstance(block, CompactionBlock) and block.content is not None:
                changes = enumerate(block.tool_changes or ())
                yield from ((f"{path}.tool_changes.{number}", each) for number, each in changes)


def summed_changes(
    request: BaseRequest, known: Collection[str], tools: Collection[Tool]
) -> tuple[dict[str, Any], ...]:
    """The blocks that take the request's `tools` to those that are there in the end, of all whose
    names are `known` then: without the messages, they make up for them.

    Raises ApiError 400 where they are too many.
    """
    shown = {each.name for each in tools}
    blocks = (block.tool for _, block in changes_in(request))
    defined = {
        each.definition.name: each.definition for each in blocks if isinstance(each, ToolDefinition)
    }
    changes = [_change("tool_addition", _definition(each)) for each in defined.values()]
    given: dict[str, OfferedTool] = {each.name: each for each in request.tools or ()}
    for name, tool in (given | defined).items():
        if name in known and (name in shown) == bool(tool.defer_loading):
            kind = "tool_addition" if name in shown else "tool_removal"
            changes.append(_change(kind, {"type": "tool_reference", "name": name}))
    if len(changes) > _MOST_CHANGES:
        raise ApiError.invalid(
            f"messages: they refer to more tools than a summary can record ({len(changes)} >"
            f" {_MOST_CHANGES}); remove those that are not needed any more",
            "compaction_too_many_tool_references",
        )
    return tuple(changes)


def _change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "tool": tool}


def _definition(tool: OfferedTool) -> dict[str, Any]:
    """As it was sent, without its marker."""
    sent = tool.as_sent()
    sent.pop("cache_control", None)
    return {"type": "tool_definition", "definition": sent}

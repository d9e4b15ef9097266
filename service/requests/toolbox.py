"""The tools of a conversation, as its system messages add and remove them."""

from collections.abc import Collection
from dataclasses import replace

from models.conversation import Tool
from service.errors import ApiError
from service.wire.blocks import (
    McpReference,
    ToolAdditionBlock,
    ToolDefinition,
    ToolReference,
    ToolRemovalBlock,
)
from service.wire.tools import AnyTool

_QUOTED_CHARACTERS = 60


class Toolbox:
    """Read in order. `paths` are those of all tools by their names, also of such as are not shown:
    a tool with `defer_loading` is shown once it is `referenced`, where that is, or added, which
    has it listed with the others."""

    def __init__(self, referenced: Collection[str]) -> None:
        self.paths: dict[str, str] = {}
        self._referenced = referenced
        self._kinds: dict[str, str] = {}
        self._tools: dict[str, Tool] = {}
        self._listed: set[str] = set()
        self._deferred: set[str] = set()
        self._removed: set[str] = set()

    @property
    def shown(self) -> tuple[Tool, ...]:
        """In the order in which their names came up, so that a change moves no other tool."""
        return tuple(
            replace(tool, is_found=name not in self._listed)
            for name, tool in self._tools.items()
            if self._is_shown(name)
        )

    @property
    def findable(self) -> tuple[Tool, ...]:
        """Those that a search may find, or find again."""
        return tuple(self._tools[name] for name in self._tools if self._is_findable(name))

    @property
    def deferred(self) -> tuple[Tool, ...]:
        """Those that are defined where they are referred to, and nowhere else."""
        return tuple(tool for name, tool in self._tools.items() if name in self._deferred)

    def define(self, tool: Tool, wire: AnyTool, path: str) -> None:
        """From here on this is the tool of its name."""
        name = tool.name
        self.paths[name], self._kinds[name], self._tools[name] = path, wire.type, tool
        self._removed.discard(name)
        ones, others = self._deferred, self._listed
        if not wire.defer_loading:
            ones, others = others, ones
        ones.add(name)
        others.discard(name)

    def check_name(self, wire: AnyTool, path: str) -> None:
        """Raises ApiError 400 where another kind of tool that is shown has the name."""
        if self._is_shown(wire.name) and self._kinds[wire.name] != wire.type:
            raise ApiError.invalid(
                f"{path}.name: {self.paths[wire.name]} is a tool of another kind that is called"
                f" '{wire.name}', too; remove it first, or use another name",
                "tool_name_conflict",
            )

    def change(self, block: ToolAdditionBlock | ToolRemovalBlock, path: str) -> None:
        """Shows a tool or hides it. Raises ApiError 400 for one that is not defined so far."""
        match block.tool:
            case ToolReference(name=name) if name in self._tools:
                if isinstance(block, ToolAdditionBlock):
                    self._listed.add(name)
                    self._deferred.discard(name)
                    self._removed.discard(name)
                else:
                    self._listed.discard(name)
                    self._removed.add(name)
            case ToolReference(name=name):
                raise ApiError.invalid(
                    f"{path}.tool.name: no tool is called '{name[:_QUOTED_CHARACTERS]}' at this"
                    " place of the conversation; name one of `tools`, or add its tool_definition",
                    "tool_reference_unresolved",
                )
            case McpReference(type=kind):
                raise ApiError.invalid(
                    f"{path}.tool.type: '{kind}' refers to an MCP server, and none is called here;"
                    " connect it in the client, and add its tools as tool_definition",
                    "tool_reference_unresolved",
                )
            case ToolDefinition():
                raise AssertionError("definitions are defined")

    def _is_findable(self, name: str) -> bool:
        return name in self._deferred and name not in self._removed

    def _is_shown(self, name: str) -> bool:
        return name in self._listed or (name in self._referenced and self._is_findable(name))

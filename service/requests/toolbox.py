"""The tools of a conversation, as its system messages add and remove them."""

from collections.abc import Collection

from models.conversation import Tool
from service.errors import ApiError
from service.wire.blocks import (
    McpReference,
    ToolAdditionBlock,
    ToolDefinition,
    ToolReference,
    ToolRemovalBlock,
)
from service.wire.tools import ClientTool, CustomTool

_QUOTED_CHARACTERS = 60


class Toolbox:
    """Read in order. `paths` are those of all tools by their names, also of such as are not shown:
    a tool with `defer_loading` is shown once it is `referenced` or added."""

    def __init__(self, referenced: Collection[str]) -> None:
        self.paths: dict[str, str] = {}
        self._referenced = referenced
        self._kinds: dict[str, str] = {}
        self._tools: dict[str, Tool] = {}
        self._shown: set[str] = set()

    @property
    def shown(self) -> tuple[Tool, ...]:
        """In the order in which their names came up, so that a change moves no other tool."""
        return tuple(tool for name, tool in self._tools.items() if name in self._shown)

    def define(self, tool: Tool, wire: CustomTool | ClientTool, path: str) -> None:
        """From here on this is the tool of its name."""
        self.paths[tool.name], self._kinds[tool.name] = path, wire.type
        self._tools[tool.name] = tool
        if wire.defer_loading and tool.name not in self._referenced:
            self._shown.discard(tool.name)
        else:
            self._shown.add(tool.name)

    def check_name(self, wire: CustomTool | ClientTool, path: str) -> None:
        """Raises ApiError 400 where another kind of tool that is shown has the name."""
        if wire.name in self._shown and self._kinds[wire.name] != wire.type:
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
                    self._shown.add(name)
                else:
                    self._shown.discard(name)
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

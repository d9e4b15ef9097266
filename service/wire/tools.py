"""Tools and the choice among them, as clients send them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from service.wire.shape import CacheableShape, FirstFault, OneOf, Shape

ToolName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,128}$")]


def _or_custom(type: Any) -> Any:
    return "custom" if type is None else type


class OfferedTool(CacheableShape):
    """What all tools have in common, beside a name."""

    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: Annotated[list[str], FirstFault()] | None = None
    input_examples: Annotated[list[dict[str, Any]], FirstFault()] | None = None


class CustomTool(OfferedTool):
    type: Annotated[Literal["custom"], BeforeValidator(_or_custom)] = "custom"
    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    eager_input_streaming: bool | None = None


class BashTool(OfferedTool):
    type: Literal["bash_20250124", "bash_20241022"]
    name: Literal["bash"]


class FirstTextEditorTool(OfferedTool):
    type: Literal["text_editor_20250124", "text_editor_20241022"]
    name: Literal["str_replace_editor"]


class TextEditorTool(OfferedTool):
    type: Literal["text_editor_20250728", "text_editor_20250429"]
    name: Literal["str_replace_based_edit_tool"]
    max_characters: int | None = Field(default=None, ge=1)


class MemoryTool(OfferedTool):
    type: Literal["memory_20250818"]
    name: Literal["memory"]


class ComputerTool(OfferedTool):
    type: Literal["computer_20251124", "computer_20250124", "computer_20241022"]
    name: Literal["computer"]
    display_width_px: int = Field(ge=1)
    display_height_px: int = Field(ge=1)
    display_number: int | None = None
    enable_zoom: bool | None = None


class RegexSearchTool(OfferedTool):
    type: Literal["tool_search_tool_regex_20251119", "tool_search_tool_regex"]
    name: Literal["tool_search_tool_regex"]


class RankedSearchTool(OfferedTool):
    type: Literal["tool_search_tool_bm25_20251119", "tool_search_tool_bm25"]
    name: Literal["tool_search_tool_bm25"]


SearchTool = RegexSearchTool | RankedSearchTool
ClientTool = BashTool | FirstTextEditorTool | TextEditorTool | MemoryTool | ComputerTool
AnyTool = CustomTool | ClientTool | SearchTool
Tool = Annotated[AnyTool, OneOf(place="tools", default="custom")]


def why_unknown(type: str) -> str:
    """What to tell whoever offers a tool of a type that is none of those above."""
    if "_toolset" in type and not type.startswith("mcp_"):
        return f"'{type}' is not supported; offer its members as tools of your own"
    if type.startswith(("web_search_", "web_fetch_", "code_execution_", "advisor_", "mcp_toolset")):
        return f"'{type}' would run on the server, which has no such tool here; leave it out"
    return f"unknown tool type '{type}'"


class FreeChoice(Shape):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Shape):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


ToolChoice = Annotated[FreeChoice | NamedChoice, OneOf()]

"""Content blocks as clients send them, checked as far as the service needs them."""

from typing import Annotated, Any, Literal, Self

from pydantic import StringConstraints

from service.wire.shape import (
    CacheableShape,
    FirstFault,
    OneOf,
    Shape,
    StringOrList,
    UncacheableShape,
    names_of,
)
from service.wire.tools import Tool


class TextBlock(CacheableShape):
    type: Literal["text"]
    text: str
    citations: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """What a string means where there may be a list of blocks."""
        return cls(type="text", text=text)


class Base64Source(Shape):
    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Shape):
    type: Literal["url"]
    url: str


class FileSource(Shape):
    type: Literal["file"]
    file_id: str


class ImageBlock(CacheableShape):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource | FileSource, OneOf()]


class PlainTextSource(Shape):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


ContentSourceBlock = Annotated[TextBlock | ImageBlock, OneOf(place="document content")]


class ContentSource(Shape):
    type: Literal["content"]
    content: Annotated[str | Annotated[list[ContentSourceBlock], FirstFault()], StringOrList()]


class Citations(Shape):
    enabled: bool | None = None


class DocumentBlock(CacheableShape):
    type: Literal["document"]
    source: Annotated[
        Base64Source | PlainTextSource | ContentSource | UrlSource | FileSource, OneOf()
    ]
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(CacheableShape):
    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], FirstFault()]
    citations: Citations | None = None


class ThinkingBlock(UncacheableShape):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(UncacheableShape):
    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(CacheableShape):
    """A call, by the client (`tool_use`) or by the first-party service (the others)."""

    type: Literal["tool_use", "server_tool_use", "mcp_tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolReferenceBlock(CacheableShape):
    type: Literal["tool_reference"]
    tool_name: str


class BrowserStateBlock(CacheableShape):
    type: Literal["browser_state"]
    tabs: list[Any]


ToolResultContent = Annotated[
    TextBlock
    | ImageBlock
    | SearchResultBlock
    | DocumentBlock
    | ToolReferenceBlock
    | BrowserStateBlock,
    OneOf(place="a tool result"),
]


class ToolResultBlock(CacheableShape):
    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[str | Annotated[list[ToolResultContent], FirstFault()], StringOrList()] | None
    ) = None
    is_error: bool | None = None


class ToolSearchFound(UncacheableShape):
    type: Literal["tool_search_tool_search_result"]
    tool_references: Annotated[list[ToolReferenceBlock], FirstFault()]


class ToolSearchError(UncacheableShape):
    type: Literal["tool_search_tool_result_error"]
    error_code: str
    error_message: str | None = None


class ToolSearchResultBlock(CacheableShape):
    type: Literal["tool_search_tool_result"]
    tool_use_id: str
    content: Annotated[ToolSearchFound | ToolSearchError, OneOf()]


class ServerToolResultBlock(CacheableShape):
    """What another tool of the first-party service answered, of no use here."""

    type: Literal[
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "mcp_tool_result",
        "advisor_tool_result",
    ]
    tool_use_id: str
    content: Any = None


class ContainerUploadBlock(CacheableShape):
    type: Literal["container_upload"]
    file_id: str


class McpToolListingBlock(UncacheableShape):
    type: Literal["mcp_tool_listing"]
    mcp_server_name: str


class FallbackBlock(UncacheableShape):
    type: Literal["fallback"]


class ToolReference(Shape):
    type: Literal["tool_reference"]
    name: str


class McpReference(Shape):
    """To one tool of an MCP server, or to all."""

    type: Literal["mcp_tool_reference", "mcp_toolset_reference"]
    server_name: str


class ToolDefinition(Shape):
    type: Literal["tool_definition"]
    definition: Tool


class ToolAdditionBlock(CacheableShape):
    type: Literal["tool_addition"]
    tool: Annotated[ToolReference | McpReference | ToolDefinition, OneOf()]


class ToolRemovalBlock(CacheableShape):
    type: Literal["tool_removal"]
    tool: Annotated[ToolReference | McpReference, OneOf()]


ToolChange = Annotated[ToolAdditionBlock | ToolRemovalBlock, OneOf()]


class CompactionBlock(CacheableShape):
    """A summary, in place of all that was said before. One without content says nothing: it was
    tried to make one, and failed."""

    type: Literal["compaction"]
    content: Annotated[str, StringConstraints(min_length=1)] | None = None
    signature: str | None = None
    tool_changes: Annotated[list[ToolChange], FirstFault()] | None = None


UserBlock = Annotated[
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolResultBlock
    | ContainerUploadBlock
    | CompactionBlock,
    OneOf(place="a user message"),
]
AssistantBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolSearchResultBlock
    | ServerToolResultBlock
    | ContainerUploadBlock
    | CompactionBlock
    | McpToolListingBlock
    | FallbackBlock,
    OneOf(place="an assistant message"),
]
SystemBlock = Annotated[
    # Summaries to be refused by their code.
    TextBlock | ToolAdditionBlock | ToolRemovalBlock | CompactionBlock,
    OneOf(place="a system message"),
]

BLOCK_TYPES = frozenset(
    name
    for shape in (
        TextBlock,
        ImageBlock,
        DocumentBlock,
        SearchResultBlock,
        ThinkingBlock,
        RedactedThinkingBlock,
        ToolUseBlock,
        ToolResultBlock,
        ToolReferenceBlock,
        BrowserStateBlock,
        ToolSearchResultBlock,
        ServerToolResultBlock,
        ContainerUploadBlock,
        CompactionBlock,
        McpToolListingBlock,
        FallbackBlock,
        ToolAdditionBlock,
        ToolRemovalBlock,
    )
    for name in names_of(shape)
)

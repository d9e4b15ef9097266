"""What content blocks other than texts say, as text."""

from collections.abc import Sequence

from service.errors import ApiError
from service.wire.blocks import (
    BrowserStateBlock,
    CompactionBlock,
    ContainerUploadBlock,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    PlainTextSource,
    SearchResultBlock,
    TextBlock,
    ToolChangeBlock,
    ToolReferenceBlock,
)
from storage.json_text import to_json

# Between text blocks of one turn, and between neighbouring turns of one role.
PARAGRAPH = "\n\n"

Readable = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolReferenceBlock
    | BrowserStateBlock
    | CompactionBlock
    | ContainerUploadBlock
    | ToolChangeBlock
)


def text_of(content: str | Sequence[Readable] | None, path: str, model: str) -> str:
    """The texts of `content`, those that are empty left out. Raises ApiError 400 for what has
    none."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (block_text(each, f"{path}.{index}", model) for index, each in enumerate(content))
    return PARAGRAPH.join(each for each in texts if each)


def block_text(block: Readable, path: str, model: str) -> str:
    """The same block has the same text whatever stands around it, so that a prompt that was begun
    alike goes on alike."""
    match block:
        case TextBlock():
            return block.text
        case DocumentBlock():
            parts = (block.title, block.context, _document_text(block, path, model))
            return "\n".join(each for each in parts if each)
        case SearchResultBlock():
            texts = PARAGRAPH.join(each.text for each in block.content)
            return f"{block.title}\n{block.source}\n{texts}"
        case ToolReferenceBlock():
            return f"Tool: {block.tool_name}"
        case BrowserStateBlock():
            return to_json({"tabs": block.tabs, **(block.model_extra or {})}).decode()
        case CompactionBlock():
            return block.content or ""
        case _:
            raise _without_text(block.type, path, model)


def _document_text(document: DocumentBlock, path: str, model: str) -> str:
    match document.source:
        case PlainTextSource(data=data):
            return data
        case ContentSource(content=content):
            return text_of(content, f"{path}.source.content", model)
        case source:
            raise ApiError.invalid(
                f"{path}.source.type: documents of '{source.type}' sources are not supported by"
                f" {model} yet; send their text"
            )


def _without_text(kind: str, path: str, model: str) -> ApiError:
    return ApiError.invalid(
        f"{path}: {kind} blocks are not supported by {model} yet; send their content as text"
    )

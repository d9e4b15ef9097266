"""What content blocks other than texts say, as text."""

from collections.abc import Mapping, Sequence

from models.conversation import Text
from service.errors import ApiError
from service.requests.marked_text import ended, joined
from service.requests.summaries import as_told
from service.wire.blocks import (
    BrowserStateBlock,
    Citations,
    CompactionBlock,
    ContainerUploadBlock,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    PlainTextSource,
    SearchResultBlock,
    TextBlock,
    ToolReferenceBlock,
)
from storage.json_text import to_json

Readable = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolReferenceBlock
    | BrowserStateBlock
    | CompactionBlock
    | ContainerUploadBlock
)


def text_of(
    content: str | Sequence[Readable] | None, path: str, model: str, kept: Mapping[str, int]
) -> Text:
    """The texts of `content`, those that are empty left out, with marks where `kept` has the path
    of a block. Raises ApiError 400 for what has none."""
    if content is None or isinstance(content, str):
        return Text(content or "")
    return joined(
        block_text(each, f"{path}.{index}", model, kept) for index, each in enumerate(content)
    )


def block_text(block: Readable, path: str, model: str, kept: Mapping[str, int]) -> Text:
    """The same block has the same text whatever stands around it, so that a prompt that was begun
    alike goes on alike."""
    match block:
        case TextBlock():
            text = Text(block.text)
        case DocumentBlock():
            _refuse_citations(block.citations, path, model)
            body = _document_text(block, path, model, kept)
            text = joined((Text(block.title or ""), Text(block.context or ""), body), "\n")
        case SearchResultBlock():
            _refuse_citations(block.citations, path, model)
            texts = text_of(block.content, f"{path}.content", model, kept)
            text = joined((Text(f"{block.title}\n{block.source}"), texts), "\n")
        case ToolReferenceBlock():
            text = Text(f"Tool: {block.tool_name}")
        case BrowserStateBlock():
            text = Text(to_json({"tabs": block.tabs, **(block.model_extra or {})}).decode())
        case CompactionBlock():
            text = Text(as_told(block.content) if block.content else "")
        case _:
            raise _without_text(block.type, path, model)
    return ended(text, kept.get(path))


def _document_text(document: DocumentBlock, path: str, model: str, kept: Mapping[str, int]) -> Text:
    match document.source:
        case PlainTextSource(data=data):
            return Text(data)
        case ContentSource(content=content):
            return text_of(content, f"{path}.source.content", model, kept)
        case source:
            raise AssertionError(f"documents have put text in the place of {source.type} sources")


def _refuse_citations(citations: Citations | None, path: str, model: str) -> None:
    if citations is not None and citations.enabled:
        raise ApiError.invalid(
            f"{path}.citations: {model} cannot cite reliably; leave citations out, or send"
            ' {"enabled": false}'
        )


def _without_text(kind: str, path: str, model: str) -> ApiError:
    return ApiError.invalid(
        f"{path}: {kind} blocks are not supported by {model} yet; send their content as text"
    )

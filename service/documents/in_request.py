"""Documents in a request that are not there as text: where they are, and how their text comes in
their place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from service.documents.sources import Source
from service.errors import ApiError
from service.wire.blocks import (
    Base64Source,
    DocumentBlock,
    FileSource,
    PlainTextSource,
    ToolResultBlock,
    UrlSource,
)
from service.wire.requests import BaseRequest, UserMessage
from service.wire.shape import Shape

# Of a PDF as it is, and in base64; and what may stand before it, as in `documents`.
_PDF_MARKS = ("%PDF-", "JVBERi0")
_PDF_MARK_WITHIN_CHARACTERS = 1024
_BLANKS = "\ufeff \t\r\n\f\v"

Request = TypeVar("Request", bound=BaseRequest)


def unread_sources(request: BaseRequest) -> dict[str, Source]:
    """The sources of documents that are to be read, by their paths."""
    return {
        path: source
        for index, message in enumerate(request.messages)
        if isinstance(message, UserMessage)
        for path, source in _in_content(message.content, f"messages.{index}.content")
    }


def _in_content(content: str | Sequence[Shape] | None, path: str) -> Iterator[tuple[str, Source]]:
    if content is None or isinstance(content, str):
        return
    for index, block in enumerate(content):
        match block:
            case ToolResultBlock(content=inner):
                yield from _in_content(inner, f"{path}.{index}.content")
            case DocumentBlock(source=PlainTextSource(data=data)):
                _check_plain(data, f"{path}.{index}.source")
            case DocumentBlock(source=Base64Source() | UrlSource() | FileSource() as source):
                yield f"{path}.{index}.source", source
            case _:
                pass


def _check_plain(data: str, path: str) -> None:
    """Raises ApiError 400 unless it is text."""
    if data[:_PDF_MARK_WITHIN_CHARACTERS].lstrip(_BLANKS).startswith(_PDF_MARKS):
        raise ApiError.invalid(
            f"{path}: it is said to be text/plain, and is a PDF; send it as base64 in a source of"
            ' {"type": "base64", "media_type": "application/pdf"}'
        )
    if "\0" in data:
        raise ApiError.invalid(
            f"{path}: it is said to be text/plain, and is binary: it has NUL characters"
        )


def with_texts(request: Request, texts: Mapping[str, str]) -> Request:
    """The request as if the client had sent `texts`, instead of what was at their paths."""
    if not texts:
        return request
    # Each list is copied once, however many of the documents are in it.
    messages: list[Any] = [*request.messages]
    for index, message in enumerate(request.messages):
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            content = _told(message.content, f"messages.{index}.content", texts)
            messages[index] = message.model_copy(update={"content": content})
    return request.model_copy(update={"messages": messages})


def _told(content: Sequence[Shape], path: str, texts: Mapping[str, str]) -> list[Shape]:
    blocks = [*content]
    for index, block in enumerate(content):
        match block:
            case ToolResultBlock(content=inner) if inner is not None and not isinstance(inner, str):
                told = _told(inner, f"{path}.{index}.content", texts)
                blocks[index] = block.model_copy(update={"content": told})
            case DocumentBlock() if (text := texts.get(f"{path}.{index}.source")) is not None:
                source = PlainTextSource(type="text", media_type="text/plain", data=text)
                blocks[index] = block.model_copy(update={"source": source})
            case _:
                pass
    return blocks

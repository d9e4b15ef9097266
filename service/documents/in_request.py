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

# Of a PDF as it is, and in base64.
_PDF_MARKS = ("%PDF-", "JVBERi0")

Request = TypeVar("Request", bound=BaseRequest)
S = TypeVar("S", bound=Shape)


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
            case DocumentBlock(source=PlainTextSource(data=data)) if data.startswith(_PDF_MARKS):
                raise ApiError.invalid(
                    f"{path}.{index}.source: it is said to be text/plain, and is a PDF; send it as"
                    ' base64 in a source of {"type": "base64", "media_type": "application/pdf"}'
                )
            case DocumentBlock(source=Base64Source() | UrlSource() | FileSource() as source):
                yield f"{path}.{index}.source", source
            case _:
                pass


def with_texts(request: Request, texts: Mapping[str, str]) -> Request:
    """The request as if the client had sent `texts`, instead of what was at their paths."""
    for path, text in texts.items():
        source = PlainTextSource(type="text", media_type="text/plain", data=text)
        request = _with(request, path.split("."), source)
    return request


def _with(shape: S, path: Sequence[str], value: Shape) -> S:
    field, *rest = path
    old: Any = getattr(shape, field)
    if not rest:
        return shape.model_copy(update={field: value})
    if isinstance(old, list):
        place, *rest = rest
        new: Any = [*old]
        new[int(place)] = _with(new[int(place)], rest, value)
    else:
        new = _with(old, rest, value)
    return shape.model_copy(update={field: new})

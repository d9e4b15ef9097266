"""The markers of the prompt cache in a request: where they may be, and for how long they keep."""

from collections.abc import Iterator, Mapping, Sequence

from service.errors import ApiError
from service.tool_search.definitions import SEARCHES
from service.wire.blocks import (
    CompactionBlock,
    ContainerUploadBlock,
    ContentSource,
    DocumentBlock,
    SearchResultBlock,
    ServerToolResultBlock,
    TextBlock,
    ToolAdditionBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from service.wire.requests import BaseRequest
from service.wire.shape import CacheableShape, CacheControl, Shape
from service.wire.tools import OfferedTool

_SECONDS = {None: 300, "5m": 300, "1h": 3600}
_MOST = 4
_Elements = Iterator[tuple[str, Shape]]


def markers_of(request: BaseRequest) -> Mapping[str, int]:
    """For how many seconds what is marked is to be kept, by its path; a string counts as a list of
    one block. Where the request itself has a marker, it is that of its last block that may have
    one and that the model is shown.

    Raises ApiError 400 for markers that are not allowed, in the words of the first-party API.
    """
    elements = list(_elements(request))
    kept = {
        path: _SECONDS[control.ttl]
        for element_path, each in elements
        for path, control in _markers(each, element_path)
    }
    places = [(f"{path}.cache_control", seconds) for path, seconds in kept.items()]
    last = next((path for path, each in reversed(elements) if _can_be_last(each)), None)
    if request.cache_control is not None and last is not None:
        seconds = _SECONDS[request.cache_control.ttl]
        if last not in kept:
            places.append(("cache_control", seconds))
        elif kept[last] != seconds:
            raise ApiError.invalid(
                f"cache_control.ttl: the last block has a cache_control of another ttl"
                f" ({last}.cache_control); leave one of the two out"
            )
        kept[last] = seconds
    _check(places)
    return kept


def _check(places: Sequence[tuple[str, int]]) -> None:
    if len(places) > _MOST:
        raise ApiError.invalid(
            f"{places[_MOST][0]}: A maximum of {_MOST} blocks with cache_control may be provided."
            f" Found {len(places)}."
        )
    shortest = _SECONDS["1h"]
    for path, seconds in places:
        if seconds > shortest:
            raise ApiError.invalid(
                f"{path}.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'"
                " cache_control block. Note that blocks are processed in the following order:"
                " `tools`, `system`, `messages`."
            )
        shortest = min(shortest, seconds)


def _elements(request: BaseRequest) -> _Elements:
    """Tools and blocks with their paths, in the order in which they are processed."""
    yield from _listed(request.tools, "tools")
    yield from _listed(request.system, "system")
    for index, message in enumerate(request.messages):
        yield from _listed(message.content, f"messages.{index}.content")


def _listed(content: str | Sequence[Shape] | None, path: str) -> _Elements:
    if isinstance(content, str):
        yield f"{path}.0", TextBlock.of(content)
    else:
        yield from ((f"{path}.{index}", each) for index, each in enumerate(content or ()))


def _markers(element: Shape, path: str) -> Iterator[tuple[str, CacheControl]]:
    """Those in the element, and then its own."""
    for inner_path, each in _inner(element, path):
        yield from _markers(each, inner_path)
    if isinstance(element, CacheableShape) and element.cache_control is not None:
        if isinstance(element, TextBlock) and not element.text.strip():
            raise ApiError.invalid(
                f"{path}.text: cache_control cannot be set for empty text blocks"
            )
        yield path, element.cache_control


def _inner(element: Shape, path: str) -> _Elements:
    match element:
        case ToolResultBlock(content=list(content)) | SearchResultBlock(content=content):
            yield from _listed(content, f"{path}.content")
        case DocumentBlock(source=ContentSource(content=list(content))):
            yield from _listed(content, f"{path}.source.content")
        case _:
            return


def _can_be_last(element: Shape) -> bool:
    match element:
        case TextBlock(text=text):
            return bool(text.strip())
        case CompactionBlock(content=content):
            return bool(content)
        case OfferedTool(defer_loading=deferred):
            return not deferred
        case ToolUseBlock(type=kind, name=name):
            return kind == "tool_use" or name in SEARCHES
        case ContainerUploadBlock() | ServerToolResultBlock():
            return False
        case ToolAdditionBlock() | ToolRemovalBlock():
            return False
        case _:
            return isinstance(element, CacheableShape)

"""A JSON body against its shape: either the request, or one error with the path of the fault."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.errors import ApiError
from service.wire.blocks import BLOCK_TYPES
from service.wire.requests import BaseRequest, EnabledThinking, MessagesRequest
from service.wire.shape import MEMBER_MARK
from service.wire.tools import why_unknown

Request = TypeVar("Request", bound=BaseRequest)
_Path = tuple[int | str, ...]

# Where the validator's own words would name Python things, or read oddly.
_WORDS = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "none_required": "blocks of this kind have none; put it on the block before or after",
    "too_short": "Input should not be empty",
    "string_pattern_mismatch": "Input should be 1 to 128 of the characters a-z A-Z 0-9 _ -",
}
_QUOTED_CHARACTERS = 60


def validate(body: dict[str, Any], kind: type[Request]) -> Request:
    """The request in `body`. Raises ApiError 400, `<path>: why`, for its first fault.

    First means first in the document; what is missing counts after what is there.
    """
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        path, why = min(
            (_fault(details) for details in faults), key=lambda fault: _position(body, fault[0])
        )
        raise ApiError.invalid(f"{'.'.join(map(str, path))}: {why}", _code(body, path)) from None
    if isinstance(request, MessagesRequest) and isinstance(request.thinking, EnabledThinking):
        _check_budget(request.thinking.budget_tokens, request.max_tokens)
    return request


def _code(body: dict[str, Any], path: _Path) -> str | None:
    """That of a request for a summary of nothing at all."""
    is_empty = path == ("messages",) and body.get("messages") == []
    return "compaction_nothing_to_summarize" if is_empty and body.get("compaction") else None


def _check_budget(budget_tokens: int, max_tokens: int) -> None:
    if budget_tokens >= max_tokens:
        raise ApiError.invalid(
            f"thinking.budget_tokens: Input should be less than max_tokens ({max_tokens})"
        )


def _fault(details: ErrorDetails) -> tuple[_Path, str]:
    path = tuple(
        step
        for step in details["loc"]
        if not (isinstance(step, str) and step.startswith(MEMBER_MARK))
    )
    if details["type"] == "one_of":
        return _union_fault(path, details["input"], details.get("ctx", {}))
    why = _WORDS.get(details["type"], details["msg"])
    return path, why.replace(" after validation", "")


def _union_fault(path: _Path, value: Any, union: dict[str, Any]) -> tuple[_Path, str]:
    if not isinstance(value, Mapping):
        return path, "Input should be an object"
    key = union["key"]
    fields = cast(Mapping[str, Any], value)
    path = (*path, key)
    if key not in fields:
        return path, "Field required"
    name = fields[key]
    if isinstance(name, str) and union["place"] == "tools":
        return path, why_unknown(_shortened(name))
    if isinstance(name, str) and union["place"]:
        if name in BLOCK_TYPES:
            return path, f"'{name}' blocks do not belong in {union['place']}"
        return path, f"unknown block type '{_shortened(name)}'"
    return path, f"Input should be {_alternatives(union['names'].split())}"


def _alternatives(names: Sequence[str]) -> str:
    *others, last = [f"'{name}'" for name in names]
    return f"{', '.join(others)} or {last}" if others else last


def _shortened(name: str) -> str:
    return name if len(name) <= _QUOTED_CHARACTERS else name[:_QUOTED_CHARACTERS] + "…"


def _position(document: Any, path: _Path) -> tuple[int, ...]:
    """Where `path` stands in the document, comparable with other paths of the same document."""
    position: list[int] = []
    for step in path:
        if isinstance(document, dict):
            keys = list(cast(dict[int | str, Any], document))
            if step not in keys:
                return (*position, len(keys))
            position.append(keys.index(step))
        elif isinstance(step, int):
            position.append(step)
        document = cast(Any, document)[step]
    return tuple(position)

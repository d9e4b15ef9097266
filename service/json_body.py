"""A request body as JSON: strict about what it says, forgiving about broken text inside strings."""

import json
import math
import re
from typing import Any, Never, cast

from service.errors import ApiError

# Deep enough for any tool input seen, far below where recursive code would run out of stack.
MAX_NESTING = 500

# Each value but the first follows one of these characters, so counting them bounds what is built
# from a body; in text they stand for themselves, and no context holds a text with so many.
_SEPARATORS = (b",", b"[", b"{")
MAX_SEPARATORS = 2_000_000

# A `\u` is an escape only after an even number of backslashes; which it is, is looked up for each
# match. The pattern begins with plain characters, which are searched for ten times as fast: the
# interpreter lock is held all the while.
_SURROGATES = re.compile(
    r"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<low>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_REPLACEMENT = r"\ufffd"
_BODY = "the request body"


def parse(body: bytes, content_type: str | None) -> dict[str, Any]:
    """The JSON object in `body`. Raises ApiError that says where the text is wrong.

    A body of more than two million values is refused unread, since building them all would hold
    up every stream (413). Duplicate keys, NaN, infinite numbers and nesting beyond 500 levels are
    refused. A UTF-8 byte order mark is skipped. An unpaired surrogate escape becomes U+FFFD: it
    stems from text that some client cut in the middle of a character, and refusing it would refuse
    the whole history for ever.
    """
    check_content_type(content_type)
    return object_in(body, _BODY)


def object_in(body: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `body`, as `parse` reads it; `name` is what errors call it."""
    if sum(map(body.count, _SEPARATORS)) > MAX_SEPARATORS:
        raise ApiError.too_large(
            f"{name} holds too many values: more than {MAX_SEPARATORS} of the characters , [ and {{"
        )
    text = _text_of(body, name)
    try:
        value = json.loads(
            _without_lone_surrogates(text),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise ApiError.invalid(
            f"{name} is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise _too_deep(name) from None
    except _Held as held:
        raise ApiError.invalid(f"{name} holds {held}") from None
    except ValueError:
        raise ApiError.invalid(f"{name} holds an integer with too many digits") from None
    if not isinstance(value, dict):
        raise ApiError.invalid(f"{name} must be a JSON object")
    body_object = cast(dict[str, Any], value)
    if not _is_shallow(body_object):
        raise _too_deep(name)
    return body_object


class _Held(Exception):
    """What the text holds and should not."""


def check_content_type(content_type: str | None) -> None:
    """Raises ApiError 400 unless it is that of JSON in UTF-8."""
    media_type, *parameters = (content_type or "").split(";")
    if media_type.strip().lower() != "application/json":
        raise ApiError.invalid(
            "content-type: send the body as JSON with `content-type: application/json`"
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip(' "').lower() not in ("utf-8", "utf8"):
            raise ApiError.invalid("content-type: the charset must be utf-8", "unsupported_charset")


def _text_of(body: bytes, name: str) -> str:
    if not body.strip():
        raise ApiError.invalid(f"{name} is empty; send a JSON object")
    if not json.detect_encoding(body).startswith("utf-8"):
        raise ApiError.invalid(
            f"{name} is not UTF-8 (it looks like UTF-16 or UTF-32)", "unsupported_charset"
        )
    try:
        return body.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ApiError.invalid(f"{name} is not valid UTF-8 at byte {error.start}") from None


def _without_lone_surrogates(text: str) -> str:
    # The replacement has the width of the escape: line and column of later faults stay right.
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _SURROGATES.sub(_whole, text)


def _whole(found: re.Match[str]) -> str:
    is_escape = _backslashes_before(found.string, found.start()) % 2 == 0
    if found["low"]:
        # Where the first half is no escape but text, the second is one, and has lost its partner.
        return found[0] if is_escape else found[0].removesuffix(found["low"]) + _REPLACEMENT
    return _REPLACEMENT if is_escape else found[0]


def _backslashes_before(text: str, end: int) -> int:
    start = end
    while start and text[start - 1] == "\\":
        start -= 1
    return end - start


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen and "\ufffd" not in key:  # what two keys were is lost, not a session
                raise _Held(f"the key {key[:100]!r} twice")
            seen.add(key)
    return value


def _refuse_constant(name: str) -> Never:
    raise _Held(f"{name}, which is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Held(f"{digits[:40]}, which is out of range")
    return number


def _is_shallow(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [
            child
            for parent in level
            for child in (cast(Any, parent).values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return True
    return False


def _too_deep(name: str) -> ApiError:
    place = "" if name == _BODY else f"{name}: "
    return ApiError.invalid(f"{place}nesting too deep: the limit is {MAX_NESTING} levels")

"""JSON as models write it: read exactly, and within bounds."""

import json
import re
from typing import Any, NoReturn

import orjson

# Deeper values than this are no honest arguments, and Python's own parser would recurse.
MAX_DEPTH = 200

# A string without its end takes all that follows, so that the search stays linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([\[{])|[\]}]', re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def read_json(text: str) -> Any:
    """The value, integers exact; half a surrogate pair becomes U+FFFD. Raises ValueError for what
    is not JSON (NaN and infinities are not), for numbers beyond a double, and for what is deeper
    than MAX_DEPTH."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0][0] == '"':
            continue
        depth += 1 if found[1] else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return _DECODER.decode(whole_characters(text))


def write_json(value: Any) -> str:
    """Compact, and like orjson but for integers of any size."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def inside_string(text: str) -> str:
    """The text as it stands in a JSON string, without the quotes around it."""
    return orjson.dumps(text)[1:-1].decode()


def whole_characters(json_text: str) -> str:
    """The same JSON with `\\ufffd` for every escape that is half a surrogate pair."""
    if "\\" not in json_text:
        return json_text
    return _ESCAPE.sub(lambda found: r"\ufffd" if found[2] else found[0], json_text)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is beyond a double")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)

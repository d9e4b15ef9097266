"""What a fixture's answer must be. Graders are frozen with the cases: see SHA256SUMS.

A grader is JSON: its `kind` is one of

    text    the whole text is `expected`, but for white space around it
    number  the text is the number `expected` and nothing else; thousands may have commas
    json    the text is JSON, alone or in one fence, that is `expected`
    call    there is one call, of the tool `expected.name` with the arguments `expected.input`

JSON is equal where its types are: true is not 1 and "1" is neither, but 1.0 is 1. The order of an
object's keys says nothing, and a key that is there twice is wrong.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n```", re.DOTALL)
_NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")


@dataclass(frozen=True)
class Answer:
    """All that a grader sees: the text, and the calls with their arguments."""

    text: str
    calls: Sequence[tuple[str, Any]]


def fault(grader: dict[str, Any], answer: Answer) -> str | None:
    """What is wrong with an answer, or None where it is right."""
    return _GRADERS[grader["kind"]](grader["expected"], answer)


def _text(expected: str, answer: Answer) -> str | None:
    found = answer.text.strip()
    return None if found == expected else f"the text is not {expected!r}"


def _number(expected: float, answer: Answer) -> str | None:
    found = answer.text.strip().removesuffix(".")
    if not _NUMBER.fullmatch(found):
        return "the text is not one number"
    value = float(found.replace(",", ""))
    return None if value == expected else f"{found} is not {expected}"


def _json(expected: Any, answer: Answer) -> str | None:
    text = answer.text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced[1] if fenced else text, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return "the text is not JSON"
    return None if _same(found, expected) else f"it is not {json.dumps(expected)}"


def _call(expected: dict[str, Any], answer: Answer) -> str | None:
    if len(answer.calls) != 1:
        return f"there are {len(answer.calls)} calls, not one"
    ((name, arguments),) = answer.calls
    if name != expected["name"]:
        return f"{name} is called, not {expected['name']}"
    if not _same(arguments, expected["input"]):
        return f"the arguments are not {json.dumps(expected['input'])}"
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


def _same(found: Any, expected: Any) -> bool:
    match found, expected:
        case dict(), dict():
            keys = found.keys() == expected.keys()
            return keys and all(_same(found[key], expected[key]) for key in expected)
        case list(), list():
            return len(found) == len(expected) and all(map(_same, found, expected))
        case (bool(), _) | (_, bool()):
            return found is expected
        case ((int() | float()), (int() | float())):
            return found == expected
        case _:
            return type(found) is type(expected) and found == expected


_GRADERS: dict[str, Callable[[Any, Answer], str | None]] = {
    "text": _text,
    "number": _number,
    "json": _json,
    "call": _call,
}

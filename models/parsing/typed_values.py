"""Values of parameters that a model wrote as raw text, typed as the tool's schema says."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

from models.json_pointer import is_pointer, pointed_to
from models.parsing.json_text import read_json


class Absent:
    """The parameter counts as not given."""


ABSENT: Final = Absent()

_ALL = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_TEXT = frozenset({"string"})
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Python takes quadratic time for more; no number that anybody means is as long.
_MAX_DIGITS = 4000
_MAX_DEPTH = 64


class Parameters:
    """The parameters of one tool, whose schema is an object's. References to other documents are
    never fetched: what they describe may be anything."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schemas = _Schemas(schema)
        self._declared: dict[str, Any] = {}
        self._required: set[str] = set()
        for each in self._schemas.parts(schema):
            self._declared.update(_mapping(each.get("properties")))
            self._required.update(map(str, _list(each.get("required"))))

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._declared)

    def is_text(self, name: str) -> bool:
        """Whether it is a string and nothing else: its raw text is its value, at any length."""
        return self._kinds(name).types == _TEXT

    def value(self, name: str, raw: str) -> Any:
        """What the raw text says; ABSENT where that is nothing. Text that cannot be what the
        schema asks for stays a string: whoever validates the call will say so."""
        kinds = self._kinds(name)
        if kinds.types == _TEXT or raw in kinds.texts:
            return raw
        text = raw.strip()
        may_lack = "string" not in kinds.types and name not in self._required
        if text in ("", '""'):
            return ABSENT if may_lack else raw
        if text in ("null", "None"):
            if "null" in kinds.types:
                return None
            return ABSENT if may_lack else raw
        if "boolean" in kinds.types and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if _NUMBER.fullmatch(text):
            number = _number(text, kinds.types)
            return raw if number is None else number
        if ("object" if text[0] == "{" else "array" if text[0] == "[" else "") in kinds.types:
            return _container(text, raw)
        return raw

    def _kinds(self, name: str) -> "_Kinds":
        return self._schemas.kinds(self._declared.get(name, True))


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The types that a schema leaves open, and the strings that it names one by one."""

    types: frozenset[str] = _ALL
    texts: frozenset[str] = frozenset()

    def __and__(self, other: "_Kinds") -> "_Kinds":
        return _Kinds(self.types & other.types, self.texts | other.texts)


class _Schemas:
    """Schemas inside of a root. Each reference is followed once, so loops and fans end."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, _Kinds] = {}

    def parts(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The schema and all that it says it is as well."""
        parts, pending, followed = list[Mapping[str, Any]](), [schema], set[str]()
        while pending:
            each = pending.pop()
            parts.append(each)
            reference = each.get("$ref")
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                pending.append(_mapping(self._target(reference)))
            pending.extend(map(_mapping, _list(each.get("allOf"))))
        return parts

    def kinds(self, schema: Any, depth: int = 0) -> _Kinds:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return _Kinds()
        schema = cast(dict[str, Any], schema)
        kinds = _Kinds()
        if "type" in schema:
            kinds &= _Kinds(_named(schema["type"]))
        values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
        if values:
            types = frozenset(map(_type_of, values))
            kinds &= _Kinds(types, frozenset(each for each in values if isinstance(each, str)))
        if isinstance(schema.get("$ref"), str):
            kinds &= self._of_reference(schema["$ref"], depth)
        for each in _list(schema.get("allOf")):
            kinds &= self.kinds(each, depth + 1)
        for choices in (_list(schema.get("anyOf")), _list(schema.get("oneOf"))):
            if choices:
                each_kinds = [self.kinds(each, depth + 1) for each in choices]
                kinds &= _Kinds(
                    frozenset[str]().union(*(each.types for each in each_kinds)),
                    frozenset[str]().union(*(each.texts for each in each_kinds)),
                )
        return kinds if kinds.types else _Kinds()  # a schema that nothing satisfies

    def _of_reference(self, reference: str, depth: int) -> _Kinds:
        if reference not in self._referred:
            self._referred[reference] = _Kinds()  # what a loop says about itself: nothing
            self._referred[reference] = self.kinds(self._target(reference), depth + 1)
        return self._referred[reference]

    def _target(self, reference: str) -> Any:
        if not is_pointer(reference):
            return True
        try:
            return pointed_to(self._root, reference)
        except (LookupError, ValueError):
            return True


def _mapping(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _named(types: Any) -> frozenset[str]:
    named = frozenset(each for each in (_list(types) or [types]) if isinstance(each, str))
    return named | {"integer"} if "number" in named else named


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array" if isinstance(value, list) else "object"


def _number(text: str, types: frozenset[str]) -> int | float | None:
    """The number, an integer exact; None if the types have no such number."""
    if len(text) > _MAX_DIGITS or not types & {"number", "integer"}:
        return None
    if text.lstrip("-").isdecimal():
        return int(text)
    if "number" in types:
        number = float(text)
        return number if abs(number) != float("inf") else None
    exact = Decimal(text)
    if abs(exact.adjusted()) > 308:  # no double is as large, and the integer would be gigabytes
        return None
    return int(exact) if exact == int(exact) else None


def _container(text: str, raw: str) -> Any:
    for read in (read_json, _read_python):
        try:
            return read(text)
        except ValueError:
            continue
    return raw


_PYTHON = re.compile(
    r""""((?:[^"\\]++|\\.)*+)"|'((?:[^'\\]++|\\.)*+)'|\b(True|False|None)\b|,(?=\s{0,64}[\]}])""",
    re.DOTALL,
)
_PYTHON_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}


def _read_python(text: str) -> Any:
    """A literal of lists, dicts, strings, numbers and names, written in JSON and read as that."""
    return read_json(_PYTHON.sub(_as_json, text))


def _as_json(found: re.Match[str]) -> str:
    if found[3]:
        return _JSON_WORDS[found[3]]
    quoted = found[1] if found[1] is not None else found[2]
    if quoted is None:  # the comma that Python allows after the last element
        return ""
    return json.dumps(_PYTHON_ESCAPE.sub(_unescaped, quoted))


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code:
        return chr(int(code, 16))
    return _PYTHON_ESCAPED.get(found[4], found[4] if found[4] in "\\'\"" else found[0])

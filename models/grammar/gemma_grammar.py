"""Calls as Gemma 4 writes them: `call:name{key:value,…}`, keys bare and in alphabetical order,
strings between two tokens that no text holds."""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

from models.conversation import Tool
from models.grammar.json_grammar import closed, json_value
from models.grammar.lark import GrammarError, checked_together, either, grammar, literal, token
from models.grammar.schemas import SchemaError, prepared_object
from models.grammar.size import check_sizes

_BARE = r"[a-zA-Z_$][a-zA-Z0-9_.$-]*"
# What can be expressed beside the type, by type.
_OF_TYPE: dict[str, set[str]] = {
    "string": {"minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}


def gemma_calls_grammar(
    tools: Sequence[Tool], quote: int, prefix: str = "", suffix: str = ""
) -> str:
    """The grammar of `call:name{…}` of one of the tools, between two expressions. `quote` is the
    token around strings.

    Raises GrammarError, which names the tool.
    """
    check_sizes(tools)
    shared = _anything(quote)
    calls: list[_Call] = []
    for place, tool in enumerate(tools):
        try:
            calls.append(_Call(tool, quote, f"t{place}"))
        except (GrammarError, SchemaError) as error:
            raise GrammarError(str(error), tool.name) from None
    names = either(each.expression for each in calls)
    rules = chain(shared, *(each.rules for each in calls))
    alone = (
        (tool.name, grammar(call.expression, [*shared, *call.rules]))
        for tool, call in zip(tools, calls, strict=True)
    )
    return checked_together(grammar(f"{prefix} {names} {suffix}", rules), alone)


def _anything(quote: int) -> list[str]:
    """The rule of any value, and what it needs."""
    string = f"{token(quote)} /(?s:.*)/ {token(quote)}"
    scalar = json_value({"type": ["number", "boolean", "null"]})
    pair = 'KEY ":" anything'
    return [
        f"KEY: /{_BARE}/",
        f"anything: {string} | {scalar} | any_list | any_object",
        'any_list: "[" (anything ("," anything)*)? "]"',
        f'any_object: "{{" ({pair} ("," {pair})*)? "}}"',
    ]


class _Call:
    """One tool's call, as an expression and the rules that it refers to."""

    def __init__(self, tool: Tool, quote: int, prefix: str) -> None:
        self.rules: list[str] = []
        self._prefix, self._quote = prefix, token(quote)
        self._objects = 0
        schema = prepared_object(tool.schema)
        definitions: dict[str, Any] = schema.pop("$defs", {})
        self.expression = f"{literal(f'call:{tool.name}')} {self._value(schema)}"
        for name, each in definitions.items():
            self.rules.append(f"{prefix}_def_{name}: {self._value(each)}")

    def _value(self, schema: Any) -> str:
        if schema is True or schema == {}:
            return "anything"
        if not isinstance(schema, dict):
            raise GrammarError("has a part that nothing satisfies")
        schema = cast(dict[str, Any], schema)
        if schema.keys() == {"$ref"}:
            return f"{self._prefix}_def_{schema['$ref'].rpartition('/')[2]}"
        if "const" in schema or "enum" in schema:
            if others := schema.keys() - {"type", "const", "enum", "format"}:
                raise _beyond(others)
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return either(map(self._just, values))
        if schema.keys() in ({"anyOf"}, {"oneOf"}):
            choices: list[Any] = schema.get("anyOf", schema.get("oneOf"))
            if "oneOf" in schema and not _of_different_types(choices):
                raise _beyond(["oneOf"])
            return either(map(self._value, choices))
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        known = {"type"}.union(*(_OF_TYPE.get(each, set()) for each in kinds or ()))
        if others := schema.keys() - known:
            raise _beyond(others)
        if not kinds:
            raise _beyond(schema)
        return either(self._of_type(each, schema) for each in kinds)

    def _of_type(self, kind: str, schema: dict[str, Any]) -> str:
        if kind == "string":
            least, most = schema.get("minLength", 0), schema.get("maxLength", "")
            return f"{self._quote} /(?s:.{{{least},{most}}})/ {self._quote}"
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            return self._object(closed(schema))
        return json_value({"type": kind, **_only(schema, _OF_TYPE.get(kind, set()))})

    def _array(self, schema: dict[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        value = self._value(schema.get("items", True))
        bounds = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
        filled = f'{value} ("," {value}){{{bounds}}}'
        return f'"[" {filled} "]"' if least else f'"[" ({filled})? "]"'

    def _object(self, schema: dict[str, Any]) -> str:
        declared: dict[str, Any] = schema.get("properties", {})
        names = sorted(name for name, each in declared.items() if each is not False)
        required = set(schema.get("required", ()))
        if missing := required - set(names):
            raise GrammarError(f"requires {min(missing)}, which it does not describe")
        for each in names:
            if not re.fullmatch(_BARE, each):
                raise GrammarError("has a property whose name cannot be written without quotes")
        others = schema.get("additionalProperties", True)
        if not names:
            return '"{}"' if others is False else self._table("KEY", others)
        return self._properties(declared, names, required, others)

    def _table(self, key: str, value: Any) -> str:
        pair = f'{key} ":" {self._value(value)}'
        return f'"{{" ({pair} ("," {pair})*)? "}}"'

    def _properties(
        self, declared: dict[str, Any], names: list[str], required: set[str], others: Any
    ) -> str:
        """Rules for what may come from each property on, at first and after a comma."""
        self._objects += 1
        rule = f"{self._prefix}_object_{self._objects}"
        pairs = [f"{literal(each + ':')} {self._value(declared[each])}" for each in names]
        end = ""
        if others is not False:
            key = f"{rule.upper()}_KEY"
            taken = "|".join(re.escape(each) for each in names)
            self.rules.append(f"{key}: /{_BARE}/ & ~/({taken})/")
            end = f'("," {key} ":" {self._value(others)})*'
        for place in range(len(names) + 1):
            nexts = list[str]()
            for each in range(place, len(names)):
                nexts.append(f"{rule}_pair_{each} {rule}_after_{each + 1}")
                if names[each] in required:
                    break
            else:
                nexts.append("")
            if place == 0:
                self.rules.append(f"{rule}_first: {' | '.join(nexts)}")
            after = " | ".join(f'"," {each}' if each else end for each in nexts)
            self.rules.append(f"{rule}_after_{place}: {after}")
        self.rules += [f"{rule}_pair_{place}: {pair}" for place, pair in enumerate(pairs)]
        return f'"{{" {rule}_first "}}"'

    def _just(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {literal(value)} {self._quote}" if value else self._quote * 2
        if isinstance(value, dict | list):
            raise GrammarError("has a constant that is no text, number or boolean")
        return literal(json.dumps(value))


def _of_different_types(choices: list[Any]) -> bool:
    types = [
        cast(dict[str, Any], each).get("type") if isinstance(each, dict) else None
        for each in choices
    ]
    named = {each for each in types if isinstance(each, str)}
    return len(named) == len(types) and not {"integer", "number"} <= named


def _only(schema: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key in keys}


def _beyond(keys: Iterable[str]) -> GrammarError:
    return GrammarError(f"uses {min(keys)} in a way that no grammar can be made of")

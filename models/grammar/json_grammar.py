"""Calls and output in JSON: names that are declared, values that follow their schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from models.conversation import Tool
from models.grammar.lark import GrammarError, checked, checked_together, either, grammar, literal
from models.grammar.schemas import SchemaError, prepared, prepared_object
from models.grammar.size import check_size, check_sizes

# What models write between two tokens of JSON: nothing, a space, or a line's end and its indent.
# Bounded, since a small model may never leave off.
_SPACE = r"( |\n {0,32}|\n\t{0,8})?"
# What may say more of a call's properties than its own `properties`.
_OTHER_PROPERTIES = (
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "dependentSchemas",
    "if",
    "oneOf",
    "patternProperties",
    "unevaluatedProperties",
)


def json_value(schema: Mapping[str, Any] | bool) -> str:
    """The expression of a JSON value that a prepared schema describes."""
    options = {"x-guidance": {"whitespace_pattern": _SPACE}}
    return "%json " + json.dumps({**options, **schema} if isinstance(schema, Mapping) else schema)


def call_arguments(schema: Any) -> str:
    """The expression of the JSON object of a call's arguments.

    Required properties are there, optional ones may be, in the order in which they are declared;
    others not, unless the schema says that they may. Raises GrammarError, also for what a grammar
    cannot express.
    """
    expression = _arguments(schema)
    checked(grammar(expression))
    return expression


def output_grammar(schema: Any) -> str:
    """The grammar of an output that is one JSON value. Raises GrammarError."""
    return checked(grammar(output_value(schema)))


def output_value(schema: Any) -> str:
    """The expression of such an output. Raises GrammarError for a schema that is none, or is too
    large."""
    check_size(schema)
    return json_value(_prepared(prepared, schema))


def json_calls_grammar(tools: Sequence[Tool], prefix: str = "", suffix: str = "") -> str:
    """The grammar of `{"name": …, "arguments": …}` of one of the tools, between two expressions.

    Raises GrammarError, which names the tool.
    """
    check_sizes(tools)
    arguments: list[str] = []
    for each in tools:
        try:
            arguments.append(_arguments(each.schema))
        except GrammarError as error:
            raise GrammarError(str(error), each.name) from None
    rules = [
        f"call_{place}: {literal(json.dumps(tool.name))} arguments_key {expression}"
        for place, (tool, expression) in enumerate(zip(tools, arguments, strict=True))
    ]
    names = either(f"call_{place}" for place in range(len(tools)))
    rules += [
        'arguments_key: SPACE "," SPACE "\\"arguments\\"" SPACE ":" SPACE',
        f"SPACE: /{_SPACE}/",
    ]
    start = f'{prefix} "{{" SPACE "\\"name\\"" SPACE ":" SPACE {names} SPACE "}}" {suffix}'
    alone = (
        (tool.name, grammar(expression)) for tool, expression in zip(tools, arguments, strict=True)
    )
    return checked_together(grammar(start, rules), alone)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """What a tool that declares properties does not declare, a model had better not make up."""
    declared = schema.get("properties")
    if declared is None or any(each in schema for each in _OTHER_PROPERTIES):
        return schema
    if not declared.keys() >= set(schema.get("required", ())):
        return schema
    return {**schema, "additionalProperties": False}


def _arguments(schema: Any) -> str:
    return json_value(closed(_prepared(prepared_object, schema)))


def _prepared(prepare: Any, schema: Any) -> dict[str, Any]:
    try:
        return prepare(schema)
    except SchemaError as error:
        raise GrammarError(str(error)) from None

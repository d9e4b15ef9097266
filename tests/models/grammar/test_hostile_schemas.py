"""Schemas that ask for more than anybody has time for: used, or refused by a named error."""

from contextlib import suppress
from typing import Any

import pytest

from models.conversation import Tool
from models.grammar.gemma_grammar import gemma_calls_grammar
from models.grammar.json_grammar import json_calls_grammar, output_grammar
from models.grammar.lark import GrammarError
from models.grammar.tagged_grammar import atem_calls_grammar, xml_calls_grammar
from models.grammar.validation import Schemas, ToolSchemaError
from models.grammar.vocabulary import Vocabulary


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def fan(key: str, last: dict[str, Any]) -> dict[str, Any]:
    """Two to the power of 40 ways to the last."""
    definitions = {f"d{n}": {key: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": last}}


def properties(of: Any, count: int = 1) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": of for n in range(count)}}


HOSTILE: dict[str, dict[str, Any]] = {
    "1,000 deep": nested(1000),
    "deep": nested(50),
    "lists in lists": {"properties": {"a": {"anyOf": [nested(1000)]}}},
    "a fan of all": fan("allOf", {"type": "object"}),
    "a fan of any": fan("anyOf", {"required": ["x"]}),
    "a fan of properties": {
        "$defs": {f"d{n}": properties({"$ref": f"#/$defs/d{n + 1}"}, 2) for n in range(40)}
        | {"d40": {"type": "object"}},
        "properties": {"a": {"$ref": "#/$defs/d0"}},
    },
    "a chain": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2000)} | {"d2000": {}},
    },
    "itself": {"$ref": "#"},
    "itself, often": {"anyOf": [{"$ref": "#"}, {"minProperties": 1}] * 2000},
    "itself in its properties": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "each other": {
        "properties": {
            "a": {"anyOf": [{"$ref": "#/properties/b"}]},
            "b": {"not": {"$ref": "#/properties/a"}},
        }
    },
    "nested repetition": properties({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}),
    "many ways to repeat": properties({"type": "string", "pattern": "^(.*a.{30})+$"}),
    "a pattern 300 deep": properties({"type": "string", "pattern": "(x|" * 300 + "y" + ")" * 300}),
    "a long string": properties({"type": "string", "minLength": 900_000, "maxLength": 10**6}),
    "a long list": properties({"type": "array", "minItems": 90_000, "maxItems": 10**5}),
    "2,000 properties": properties({"type": "string"}, 2000),
    "20,000 values": properties({"enum": [f"v{n}" for n in range(20_000)]}),
    "all of 4 to the power of 6": {
        "allOf": [{"anyOf": [{**properties({}, k + 1), "required": [f"p{k}"]} for k in range(4)]}]
        * 6
    },
    "a number beyond all": properties({"type": "integer", "minimum": -(10**400)}),
    "no finite number": properties({"type": "number", "multipleOf": 1e-300}),
}


MAKERS = pytest.mark.parametrize(
    "make",
    [
        json_calls_grammar,
        xml_calls_grammar,
        atem_calls_grammar,
        lambda tools: gemma_calls_grammar(tools, 256),
    ],
    ids=["json", "xml", "atem", "gemma"],
)


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
@MAKERS
def test_a_hostile_schema_has_a_grammar_or_a_named_error(
    vocabulary: Vocabulary, schema: dict[str, Any], make: Any
) -> None:
    grammar, refused = None, None
    try:
        grammar = make([Tool("t", "", schema)])
    except GrammarError as error:
        refused = error
    if grammar is not None:
        vocabulary.matcher(grammar).compute_bitmask()
    else:
        assert refused is not None
        assert refused.tool == "t"
        assert len(str(refused)) < 300


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_validated_with_or_refused(schema: dict[str, Any]) -> None:
    with suppress(ToolSchemaError):
        Schemas([Tool("t", "", schema)]).fault("t", {"a": "x" * 1000, "p0": "a" * 1000})


@MAKERS
@pytest.mark.parametrize(
    "schema",
    [
        properties({"type": "string"}, 5_000),
        {"type": "object", "required": [f"p{n}" for n in range(10_000)]},
        properties({"enum": [f"v{n}" for n in range(100_000)]}),
        properties(properties({"type": "string"}, 100), 100),
    ],
    ids=["properties", "required", "values", "schemas"],
)
def test_what_takes_too_long_to_compile_is_not_begun(schema: dict[str, Any], make: Any) -> None:
    tools = [Tool("good", "", properties({}, 3)), Tool("t", "", schema)]
    with pytest.raises(GrammarError, match=r"^is too large for a grammar$") as caught:
        make(tools)
    assert caught.value.tool == "t"
    with pytest.raises(GrammarError, match=r"^is too large for a grammar$"):
        output_grammar(schema)


@MAKERS
def test_tools_that_are_too_large_together_are_nobodys_fault(make: Any) -> None:
    schema = properties(properties({"type": "string"}, 3), 20)
    with pytest.raises(GrammarError, match=r"^is too large for a grammar$") as caught:
        make([Tool(f"tool_{n}", "", schema) for n in range(150)])
    assert caught.value.tool is None


def test_150_tools_have_one_grammar(vocabulary: Vocabulary) -> None:
    schema = {**properties({"type": "string", "description": "x" * 100}, 8), "required": ["p1"]}
    tools = [Tool(f"tool_{n}", "", schema) for n in range(150)]
    for make in (json_calls_grammar, xml_calls_grammar):
        vocabulary.matcher(make(tools)).compute_bitmask()


KEYWORDS = [
    *("$ref", "$defs", "$id", "$schema", "additionalProperties", "allOf", "anyOf", "const"),
    *("contains", "default", "definitions", "dependentRequired", "dependentSchemas", "description"),
    *("enum", "exclusiveMaximum", "format", "if", "items", "maxItems", "maxLength", "maximum"),
    *("minItems", "minLength", "minProperties", "multipleOf", "not", "oneOf", "pattern"),
    *("patternProperties", "prefixItems", "properties", "propertyNames", "required", "then"),
    *("title", "type", "unevaluatedProperties", "uniqueItems", "x-own"),
]
ODD = [None, True, False, 0, -1, 1.5, 10**30, "", "x", "#", [], {}, [None], [1], ["x"], [[]], [{}]]
ODD += [{"x": None}, {"x": 1}, {"x": []}, {"": {}}, {"$ref": []}, {"type": {}}, "#/a", "#/%", "a#b"]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_whatever_a_keyword_holds_is_used_or_refused_by_name(keyword: str) -> None:
    for value in ODD:
        held = {keyword: value}
        for schema in (held, {"properties": {"a": held}}, {"properties": {"a": {"items": held}}}):
            with suppress(ToolSchemaError):
                Schemas([Tool("t", "", schema)]).fault("t", {"a": [1]})
            with suppress(GrammarError):
                json_calls_grammar([Tool("t", "", schema)])

import re
from typing import Any

import pytest

from models.conversation import Tool
from models.grammar.validation import Schemas, ToolSchemaError


def tool(schema: Any, name: str = "t") -> Tool:
    return Tool(name, "", schema)


def test_arguments_that_follow_the_schema_have_no_fault() -> None:
    schemas = Schemas([tool({"properties": {"a": {"type": "integer"}}, "required": ["a"]})])
    assert schemas.fault("t", {"a": 1}) is None
    assert schemas.fault("t", {"a": 10**30, "more": [None]}) is None


def test_a_fault_says_what_of_the_schema_is_not_met_and_nothing_of_the_value() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    schemas = Schemas([tool(schema)])
    assert schemas.fault("t", {"a": "SECRET"}) == "the schema's properties/a/type is not met"
    assert schemas.fault("t", {"SECRET": 1}) == "the schema's additionalProperties is not met"


def test_a_tool_that_nobody_declared_has_no_fault() -> None:
    assert Schemas([]).fault("t", {"a": 1}) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"type": "banana"}}}, "properties/a/type"),
        ({"properties": {"a": {"pattern": "("}}}, "properties/a/pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "#/$defs/gone"),
        ({"minProperties": -1}, "minProperties"),
        ({"type": "array"}, "must be of type object"),
        (3, "not an object"),
    ],
    ids=str,
)
def test_a_broken_schema_is_named_with_the_place_of_its_tool(schema: Any, why: str) -> None:
    with pytest.raises(ToolSchemaError, match=re.escape(why)) as caught:
        Schemas([tool({}), tool(schema, "odd")])
    assert caught.value.place == 1


def test_other_documents_formats_and_unknown_keywords_ask_for_nothing() -> None:
    schema = {
        "$id": "https://example.org/t.json",
        "properties": {
            "ext": {"$ref": "https://example.org/x.json"},
            "url": {"type": "string", "format": "uri"},
            "own": {"type": "integer", "x-own": 1, "deprecated": True},
        },
    }
    assert Schemas([tool(schema)]).fault("t", {"ext": 1, "url": "not one", "own": 3}) is None


@pytest.mark.parametrize(
    "reference", ["#/$defs/A<b> c~1d", "#/%24defs/A%3Cb%3E%20c~1d", "#/anyOf/0"]
)
def test_a_reference_is_the_fragment_of_a_uri(reference: str) -> None:
    number = {"type": "integer"}
    schema = {"$defs": {"A<b> c/d": number}, "anyOf": [number, True]}
    schemas = Schemas([tool({**schema, "properties": {"a": {"$ref": reference}}})])
    assert schemas.fault("t", {"a": 1}) is None
    assert schemas.fault("t", {"a": "x"}) is not None


@pytest.mark.parametrize("reference", ["#/anyOf/-1", "#/anyOf/²", "#/anyOf/2", "#/anyOf/00001x"])
def test_a_reference_to_what_is_not_in_a_list_is_broken(reference: str) -> None:
    with pytest.raises(ToolSchemaError, match="which is not there"):
        Schemas([tool({"anyOf": [True, True], "properties": {"a": {"$ref": reference}}})])


@pytest.mark.parametrize("key", ["allOf", "anyOf", "oneOf"])
def test_what_refers_to_itself_ends(key: str) -> None:
    loop = {"$defs": {"A": {key: [{"$ref": "#/$defs/A"}]}}, "$ref": "#/$defs/A"}
    assert Schemas([tool(loop)]).fault("t", {"a": 1}) is None
    assert Schemas([tool({"$ref": "#"})]).fault("t", {}) is None


def test_a_tree_is_checked_at_any_depth() -> None:
    node = {"properties": {"kids": {"items": {"$ref": "#/$defs/N"}}, "v": {"type": "integer"}}}
    schemas = Schemas([tool({"$defs": {"N": node}, "$ref": "#/$defs/N"})])
    assert schemas.fault("t", {"kids": [{"kids": [{"v": 1}]}]}) is None
    assert schemas.fault("t", {"kids": [{"kids": [{"v": "1"}]}]}) is not None


def test_patterns_that_go_back_and_forth_end() -> None:
    patterns = ["^(a+)+$", "^(a+)+(?=c)$", r"^((?=a)a+)+\1?$"]
    for pattern in patterns:
        schemas = Schemas([tool({"properties": {"a": {"pattern": pattern}}})])
        assert schemas.fault("t", {"a": "a" * 5000 + "b"}) is not None

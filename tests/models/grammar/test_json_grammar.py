import itertools
import json
from typing import Any

import pytest

from models.conversation import Tool
from models.grammar.json_grammar import call_arguments, json_calls_grammar, output_grammar
from models.grammar.lark import GrammarError, grammar, literal, token
from models.grammar.validation import Validator
from models.grammar.vocabulary import Vocabulary
from tests.models.every_kind_of_schema import EVERY_KIND_OF_SCHEMA
from tests.models.grammar.following import follows


def arguments_follow(vocabulary: Vocabulary, schema: Any, value: Any) -> bool:
    return follows(vocabulary, grammar(call_arguments(schema)), json.dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"loc": {"city": "Oslo"}, "n": 4, "maybe": False},
        {"loc": {"lat": 5.5}, "maybe": None, "tree": {"v": None, "kids": [{"v": 1, "kids": []}]}},
        {"bad": {"as": ["it", "is"]}, "ext": 3, "url": "https://example.org/a?b=c"},
        {"when": "one day", "k": 3, "e": "1", "any": [None], "tup": [1, "a"]},
        {"e": None},
    ],
    ids=str,
)
def test_arguments_may_be_what_their_schema_says(vocabulary: Vocabulary, value: Any) -> None:
    assert arguments_follow(vocabulary, EVERY_KIND_OF_SCHEMA, value)
    assert Validator(EVERY_KIND_OF_SCHEMA, of_arguments=True).fault(value) is None


@pytest.mark.parametrize(
    "value",
    [
        {"n": "4"},
        {"maybe": 0},
        {"tree": {"kids": [{"v": "1"}]}},
        {"k": 4},
        {"e": 2},
        {"no": 1},
        {"tup": ["a"]},
    ],
    ids=str,
)
def test_arguments_cannot_be_anything_else(vocabulary: Vocabulary, value: Any) -> None:
    assert not arguments_follow(vocabulary, EVERY_KIND_OF_SCHEMA, value)
    assert Validator(EVERY_KIND_OF_SCHEMA, of_arguments=True).fault(value) is not None


def test_required_properties_are_there_and_optional_ones_may_be(vocabulary: Vocabulary) -> None:
    schema = {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]}
    for names in itertools.chain.from_iterable(itertools.combinations("abc", n) for n in range(4)):
        assert arguments_follow(vocabulary, schema, dict.fromkeys(names, 1)) == ("b" in names)


@pytest.mark.parametrize(
    ("schema", "may_be"),
    [
        ({"properties": {"a": {}}}, False),
        ({"properties": {"a": {}}, "additionalProperties": False}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, True),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, True),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, False),
        ({"properties": {}}, False),
        ({}, True),
        ({"type": "object"}, True),
        ({"properties": {"a": {}}, "required": ["other"]}, True),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"other": {}}}]}, True),
    ],
    ids=str,
)
def test_what_is_not_declared_is_there_only_where_the_schema_says_so(
    vocabulary: Vocabulary, schema: Any, may_be: bool
) -> None:
    assert arguments_follow(vocabulary, schema, {"other": 1}) == may_be


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        ('{"a":1,"b":[1,2]}', True),
        ('{"a": 1, "b": [1, 2]}', True),
        ('{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}', True),
        ('{\n\t"a": 1,\n\t"b": []\n}', True),
        ('{   "a": 1}', False),
        ('{\n\n\n"a": 1}', False),
        ('{"a": ' + " " * 100 + "1}", False),
    ],
)
def test_space_is_what_models_write_and_has_an_end(
    vocabulary: Vocabulary, text: str, may_be: bool
) -> None:
    schema = {"properties": {"a": {}, "b": {}}}
    assert follows(vocabulary, grammar(call_arguments(schema)), text) == may_be


TOOLS = (
    Tool("run", "", {"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}),
    Tool("look", "", {"properties": {"deep": {"type": "boolean"}}}),
)


@pytest.mark.parametrize(
    ("name", "arguments", "may_be"),
    [
        ("run", {"cmd": "ls </tool_call>\n"}, True),
        ("look", {"deep": True}, True),
        ("look", {}, True),
        ("run", {}, False),
        ("run", {"deep": True}, False),
        ("walk", {}, False),
        ("runs", {"cmd": "ls"}, False),
    ],
)
def test_a_call_is_of_a_declared_tool_and_follows_its_schema(
    vocabulary: Vocabulary, name: str, arguments: Any, may_be: bool
) -> None:
    calls = json_calls_grammar(TOOLS, literal("\n"), literal("\n") + token(257))
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps({"name": name, "arguments": arguments}, separators=separators)
        assert follows(vocabulary, calls, f"\n{text}\n", 257) == may_be


def test_no_text_of_a_call_has_a_marker_in_it(vocabulary: Vocabulary) -> None:
    calls = json_calls_grammar(TOOLS)
    begun = '{"name": "run", "arguments": {"cmd": "'
    assert follows(vocabulary, calls, begun, "<|im_start|>", '"}}')
    assert not follows(vocabulary, calls, begun, 257, '"}}')


@pytest.mark.parametrize(
    ("schema", "text", "may_be"),
    [
        ({"type": "integer"}, "12", True),
        ({"type": "integer"}, "12.5", False),
        ({"enum": ["a", "b"]}, '"b"', True),
        (True, "[1]", True),
        ({"type": "object", "properties": {"a": {}}}, '{"b": 1}', True),
        ({"type": "object", "additionalProperties": False}, '{"b": 1}', False),
        ({"items": [{"type": "integer"}], "type": "array"}, "[1]", True),
        ({"items": [{"type": "integer"}], "type": "array"}, "[false]", False),
    ],
)
def test_output_is_one_value_of_its_schema(
    vocabulary: Vocabulary, schema: Any, text: str, may_be: bool
) -> None:
    assert follows(vocabulary, output_grammar(schema), text) == may_be


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"properties": {"a": {"uniqueItems": True, "type": "array"}}}, "uniqueItems"),
        ({"properties": {"a": {"oneOf": [{"minLength": 1}, {"maxLength": 3}]}}}, "oneOf"),
        ({"properties": {"a": {"pattern": "(?=a)b", "type": "string"}}}, "look-around"),
        ({"properties": {"a": {"pattern": "(", "type": "string"}}}, "regex"),
        ({"properties": {"a": {"type": "banana"}}}, "banana"),
        ({"properties": {"a": False}, "required": ["a"]}, "unsatisfiable"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "#/$defs/gone"),
        ({"type": "array"}, "type object"),
        ({"properties": []}, "properties"),
        ({"required": [["a"]]}, "requires"),
        ("object", "not an object"),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_named(schema: Any, why: str) -> None:
    with pytest.raises(GrammarError, match=r"\w") as caught:
        json_calls_grammar([TOOLS[0], Tool("odd", "", schema)])
    assert caught.value.tool == "odd"
    assert why in str(caught.value) or why in str(caught.value).lower()

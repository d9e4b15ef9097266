from typing import Any

import pytest

from models.conversation import Tool
from models.grammar.gemma_grammar import gemma_calls_grammar
from models.grammar.lark import GrammarError, token
from models.grammar.vocabulary import Vocabulary
from tests.models.grammar.following import follows

QUOTE, END = 256, 257
LIST_OF_X: dict[str, Any] = {"type": "array", "items": {"$ref": "#/$defs/x"}}
TOOLS = (
    Tool(
        "write_file",
        "",
        {
            "$defs": {"x": {"type": "object", "properties": {"kids": LIST_OF_X}}},
            "properties": {
                "path": {"type": "string"},
                "content": {"type": "string", "maxLength": 20},
                "mode": {"enum": ["w", "a", 3, None]},
                "n": {"type": ["integer", "null"]},
                "o": {
                    "type": "object",
                    "properties": {"a": {"type": "integer", "minimum": 3}},
                    "additionalProperties": {"type": "boolean"},
                },
                "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "l": {**LIST_OF_X, "minItems": 1, "maxItems": 3},
                "any": {},
                "free": {"type": "object"},
            },
            "required": ["path", "content"],
        },
    ),
    Tool("look", "", {}),
)


def call(vocabulary: Vocabulary, text: str) -> bool:
    """Whether that is a call; `"` stands for the token around strings."""
    grammar = gemma_calls_grammar(TOOLS, QUOTE, suffix=token(END))
    pieces: list[str | int] = []
    for place, piece in enumerate(text.split('"')):
        pieces += [QUOTE, piece] if place else [piece]
    return follows(vocabulary, grammar, *pieces, END)


@pytest.mark.parametrize(
    "arguments",
    [
        'content:"ab",path:"c"',
        'content:"",path:"}\n<|\'|>,n:3"',
        'content:"ab",l:[{kids:[{}]},{}],path:"c"',
        'any:{b:[1,true,"foo"]},content:"",free:{a:{}},m:null,mode:"w",n:3,o:{a:4,b:true},path:""',
        'content:"ab",mode:3,n:null,path:"c"',
        'content:"ab",mode:null,path:"c"',
    ],
)
def test_a_call_follows_its_schema(vocabulary: Vocabulary, arguments: str) -> None:
    assert call(vocabulary, f"call:write_file{{{arguments}}}")


@pytest.mark.parametrize(
    "arguments",
    [
        'path:"c",content:"ab"',
        'content:"ab",path:"c",zz:3',
        'content:"ab"',
        'content:"ab",o:{a:2},path:"c"',
        'content:"ab",o:{b:3},path:"c"',
        'content:"ab",l:[],path:"c"',
        'content:"ab",l:[{},{},{},{}],path:"c"',
        'content:"' + "b" * 21 + '",path:"c"',
        'content:"ab",mode:"x",path:"c"',
        "content:ab,path:c",
    ],
)
def test_a_call_can_be_nothing_else(vocabulary: Vocabulary, arguments: str) -> None:
    assert not call(vocabulary, f"call:write_file{{{arguments}}}")


def test_a_tool_without_properties_takes_any(vocabulary: Vocabulary) -> None:
    assert call(vocabulary, "call:look{}")
    assert call(vocabulary, 'call:look{a:"x",b:{c:[]}}')
    assert not call(vocabulary, "call:unknown{}")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "^x"}}}, "pattern"),
        ({"properties": {"a b": {}}}, "without quotes"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"properties": {"a": {"const": {"b": 1}}}}, "constant"),
        ({"required": ["a"]}, "requires a"),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_named(schema: Any, why: str) -> None:
    with pytest.raises(GrammarError, match=why) as caught:
        gemma_calls_grammar([*TOOLS, Tool("odd", "", schema)], QUOTE)
    assert caught.value.tool == "odd"

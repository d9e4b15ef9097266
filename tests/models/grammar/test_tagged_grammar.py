from typing import Any

import pytest

from models.conversation import Tool
from models.grammar.lark import GrammarError, literal, token
from models.grammar.tagged_grammar import atem_calls_grammar, xml_calls_grammar
from models.grammar.vocabulary import Vocabulary
from tests.models.grammar.following import follows

WRITE = Tool(
    "write_file",
    "",
    {
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "mode": {"enum": ["w", "a"]},
            "n": {"type": ["integer", "null"]},
            "options": {"type": "object", "properties": {"a": {"type": "integer"}}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["path", "content"],
    },
)
NOTHING = Tool("look", "", {"type": "object", "properties": {}})
SHORT = Tool("short", "", {"properties": {"q": {"type": "string", "maxLength": 4}}})
TOOLS = (WRITE, NOTHING, SHORT)
CONTENTS = (
    "",
    "one\ntwo\n",
    'f = "</parameter>"\nt = "</function></tool_call>"\nu = "<parameter=path>x</parameter>"',
    "</parameter>\n<parameter=unknown>\n",
    "</parameter>\n\n\n<parameter",
    "é 🜁 \x00",
)


def xml(name: str, parameters: dict[str, str]) -> str:
    return (
        f"<function={name}>\n"
        + "".join(f"<parameter={p}>\n{v}\n</parameter>\n" for p, v in parameters.items())
        + "</function>"
    )


def atem(name: str, parameters: dict[str, str]) -> str:
    return (
        f'<atem:invoke name="{name}">\n'
        + "".join(
            f'<atem:parameter name="{p}">{v}</atem:parameter>\n' for p, v in parameters.items()
        )
        + "</atem:invoke>"
    )


both = pytest.mark.parametrize(
    ("make", "write"), [(xml_calls_grammar, xml), (atem_calls_grammar, atem)], ids=["xml", "atem"]
)


@both
@pytest.mark.parametrize("content", CONTENTS, ids=repr)
def test_text_may_hold_what_looks_like_a_tag(
    vocabulary: Vocabulary, make: Any, write: Any, content: str
) -> None:
    grammar = make(TOOLS, literal("\n"), literal("\n") + token(257))
    for more in ({}, {"n": "3"}, {"mode": "a", "note": content}):
        call = write("write_file", {"path": "a.py", "content": content, **more})
        assert follows(vocabulary, grammar, f"\n{call}\n", 257)


@both
def test_text_cannot_hold_what_would_be_read_as_its_end(
    vocabulary: Vocabulary, make: Any, write: Any
) -> None:
    grammar = make(TOOLS)
    whole = {"path": "a.py", "content": "x"}
    start, end = write("write_file", whole).split("x")
    assert follows(vocabulary, grammar, start, "x", end)
    tag = write("t", {"path": ""}).split("\n")[1].split(">")[0] + ">"
    for close in (end.strip(), end.replace("\n", ""), end.split(">")[0].strip() + ">" + tag):
        assert not follows(vocabulary, grammar, start, f"x{close} y", end)


@both
@pytest.mark.parametrize(
    ("more", "may_be"),
    [
        ({"mode": "w"}, True),
        ({"n": "null"}, True),
        ({"n": "-12", "options": '{"a": 1}'}, True),
        ({"note": "null"}, True),
        ({"mode": "x"}, False),
        ({"n": "1.5"}, False),
        ({"n": '"1"'}, False),
        ({"options": '{"a": "1"}'}, False),
        ({"options": '{"b": 1}'}, True),
        ({"note": "x", "mode": "w"}, False),
    ],
    ids=str,
)
def test_values_are_as_their_schemas_say(
    vocabulary: Vocabulary, make: Any, write: Any, more: dict[str, str], may_be: bool
) -> None:
    grammar, whole = make(TOOLS), {"path": "a", "content": "b"}
    assert follows(vocabulary, grammar, write("write_file", whole | more)) == may_be


@both
def test_parameters_come_as_declared_and_the_tag_of_no_parameter_is_text(
    vocabulary: Vocabulary, make: Any, write: Any
) -> None:
    grammar, whole = make(TOOLS), {"path": "a", "content": "b"}
    assert not follows(vocabulary, grammar, write("write_file", {"mode": "w"} | whole))
    assert follows(vocabulary, grammar, write("write_file", whole | {"unknown": "1"}))
    assert not follows(vocabulary, grammar, write("look", {"unknown": "1"}))


@both
def test_required_parameters_are_there(vocabulary: Vocabulary, make: Any, write: Any) -> None:
    grammar = make(TOOLS)
    assert follows(vocabulary, grammar, write("look", {}))
    assert follows(vocabulary, grammar, write("short", {}))
    assert not follows(vocabulary, grammar, write("write_file", {}))
    assert not follows(vocabulary, grammar, write("write_file", {"path": "a"}))
    assert not follows(vocabulary, grammar, write("unknown", {}))


@both
@pytest.mark.parametrize(("text", "may_be"), [("abcd", True), ("ab\nd", True), ("abcde", False)])
def test_text_is_as_long_as_it_may_be(
    vocabulary: Vocabulary, make: Any, write: Any, text: str, may_be: bool
) -> None:
    assert follows(vocabulary, make(TOOLS), write("short", {"q": text})) == may_be


@both
def test_a_tool_that_says_nothing_of_its_parameters_takes_any(
    vocabulary: Vocabulary, make: Any, write: Any
) -> None:
    grammar = make([Tool("any", "", {"type": "object"}), NOTHING])
    assert follows(vocabulary, grammar, write("any", {}))
    assert follows(vocabulary, grammar, write("any", {"a": CONTENTS[2], "b-c": "", "d": "[1]"}))
    assert not follows(vocabulary, grammar, write("any", {"a b": "c"}))
    assert not follows(vocabulary, grammar, write("look", {"a": "b"}))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "^x"}}}, "lets a be text"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"minimum": 1}]}}}, "lets a be text"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "end its own tag"),
        ({"properties": {"a>": {}}}, "no tag can hold"),
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "anyOf"),
        ({"required": ["a"]}, "requires a"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"properties": {f"p{n}": {} for n in range(65)}}, "64 parameters"),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_named(schema: Any, why: str) -> None:
    with pytest.raises(GrammarError, match=why) as caught:
        xml_calls_grammar([NOTHING, Tool("odd", "", schema)])
    assert caught.value.tool == "odd"

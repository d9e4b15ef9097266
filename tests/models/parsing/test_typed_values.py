from typing import Any

import pytest

from models.parsing.typed_values import ABSENT, Parameters
from tests.models.every_kind_of_schema import EVERY_KIND_OF_SCHEMA

RUN = {
    "type": "object",
    "properties": {
        "cmd": {"type": "string"},
        "timeout": {"type": "integer"},
        "background": {"type": "boolean"},
        "env": {"type": "object"},
        "args": {"type": "array", "items": {"type": "string"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "ratio": {"type": "number"},
        "must": {"type": ["integer", "null"]},
        "count": {"type": "integer"},
    },
    "required": ["cmd", "must", "count"],
}

HARD = {
    **EVERY_KIND_OF_SCHEMA,
    "type": "object",
    "$defs": {
        **EVERY_KIND_OF_SCHEMA["$defs"],
        "a/b~c": {"type": "boolean"},
        "A<b>": {"type": "integer"},
    },
    "properties": {
        **EVERY_KIND_OF_SCHEMA["properties"],
        "when": {"type": "string", "format": "date-time"},
        "digits": {"enum": ["1", "2", 3]},
        "escaped": {"$ref": "#/$defs/a~1b~0c"},
        "encoded": {"$ref": "#/%24defs/A%3Cb%3E"},
        "both": {"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "boolean"]}]},
    },
}


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        *[("background", raw, True) for raw in ("True", " true\n", "TRUE")],
        ("background", "FALSE", False),
        ("background", "1", "1"),
        ("background", "yes", "yes"),
        ("timeout", "30", 30),
        ("encoded", "30", 30),
        ("timeout", "30.0", 30),
        ("timeout", "1e3", 1000),
        ("timeout", "-5", -5),
        ("timeout", "1.5", "1.5"),
        ("timeout", "1e999999999", "1e999999999"),
        ("timeout", "030", "030"),
        ("timeout", "0x10", "0x10"),
        ("timeout", "NaN", "NaN"),
        ("timeout", "٣", "٣"),
        ("timeout", "9" * 5000, "9" * 5000),
        ("timeout", "9007199254740993", 9007199254740993),
        *[("timeout", raw, ABSENT) for raw in ("", '""', "None", "null")],
        ("count", "", ""),
        ("count", "None", "None"),
        ("must", "None", None),
        ("must", "null", None),
        *[("cmd", raw, raw) for raw in ("null", "None", "True", "123", "", '"quoted"', " a\n")],
        ("note", "null", None),
        ("note", "None", None),
        ("note", "12", "12"),
        ("note", "", ""),
        ("ratio", "30.0", 30.0),
        ("ratio", "9007199254740993", 9007199254740993),
        ("ratio", "1e999", "1e999"),
        ("env", "{'A': 1, 'B': True}", {"A": 1, "B": True}),
        ("env", '{"A": {"B": [null]}}', {"A": {"B": [None]}}),
        ("env", "{'A': __import__('os')}", "{'A': __import__('os')}"),
        ("env", "[1]", "[1]"),
        ("args", "['a', \"b'c\"]", ["a", "b'c"]),
        ("args", "['\\x41\\u00e9\\n\\\\', None, 1, ]", ["Aé\n\\", None, 1]),
        ("args", '["\\ud83d", "\\ud83d\\ude00"]', ["\ufffd", "😀"]),
        ("args", "[" * 100_000, "[" * 100_000),
        ("args", "[" + "'\\'" * 50_000, "[" + "'\\'" * 50_000),
        ("args", "[NaN]", "[NaN]"),
        ("undeclared", "4", 4),
        ("undeclared", "text", "text"),
    ],
)
def test_raw_text_becomes_what_the_schema_says(name: str, raw: str, value: Any) -> None:
    found = Parameters(RUN).value(name, raw)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("loc", '{"city":"Oslo"}', {"city": "Oslo"}),
        ("n", "4", 4),
        ("maybe", "False", False),
        ("maybe", "None", None),
        (
            "tree",
            '{"v":null,"kids":[{"v":1,"kids":[]}]}',
            {"v": None, "kids": [{"v": 1, "kids": []}]},
        ),
        ("bad", "[1]", [1]),
        ("ext", "x", "x"),
        ("url", "https://example.org", "https://example.org"),
        ("when", "null", "null"),
        ("k", "3", 3),
        ("e", "null", None),
        ("e", "1", "1"),
        ("digits", "1", "1"),
        ("digits", "3", 3),
        ("any", "true", True),
        ("any", '"quoted"', '"quoted"'),
        ("no", "x", "x"),
        ("tup", '[1, "a"]', [1, "a"]),
        ("escaped", "True", True),
        ("both", "7", 7),
    ],
)
def test_schemas_without_a_type_of_their_own_are_followed(name: str, raw: str, value: Any) -> None:
    assert Parameters(HARD).value(name, raw) == value


def test_only_strings_and_nothing_else_are_plain_text() -> None:
    run, hard = Parameters(RUN), Parameters(HARD)

    assert [name for name in run.names if run.is_text(name)] == ["cmd"]
    assert [name for name in hard.names if hard.is_text(name)] == ["url", "when"]


def test_parameters_of_a_referred_or_composed_schema_are_declared() -> None:
    schema = {
        "$ref": "#/$defs/Base",
        "$defs": {"Base": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        "allOf": [{"properties": {"b": {"type": "boolean"}}}, {"$ref": "#"}],
    }
    parameters = Parameters(schema)

    assert set(parameters.names) == {"a", "b"}
    assert (parameters.value("a", ""), parameters.value("b", "")) == ("", ABSENT)


def test_hostile_schemas_take_no_time() -> None:
    fan = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 9} for n in range(60)}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(1000):
        deep = {"anyOf": [deep]}
    schema = {"$defs": fan, "properties": {"fan": {"$ref": "#/$defs/D0"}, "deep": deep}}
    parameters = Parameters(schema)

    assert parameters.value("fan", "x") == "x"
    assert parameters.value("deep", "3") == 3

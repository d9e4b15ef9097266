import json
from typing import Any

import pytest

from models.parsing.events import CallArguments, CallEnd, CallStart
from models.parsing.xml_call import XmlCalls
from tests.models.parsing.call_bodies import calls_in, events_of, splits

LITERAL = 's = "</parameter>"\nt = "</function></tool_call>"\nu = "<parameter=path>x</parameter>"'


def function(name: str, **parameters: str) -> str:
    values = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items()
    )
    return f"<function={name}>\n{values}</function>\n"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "\n" + function("write_file", path="a.py", content=LITERAL),
            [("write_file", {"path": "a.py", "content": LITERAL})],
        ),
        (
            function("write_file", content="x\n</parameter>\n</function>\nmore", path="<"),
            [("write_file", {"content": "x\n</parameter>\n</function>\nmore", "path": "<"})],
        ),
        (
            function("write_file", content="</parameter>" + " " * 99 + "</function>"),
            [("write_file", {"content": "</parameter>" + " " * 99 + "</function>"})],
        ),
        (
            function("write_file", content="\n\n a\n\n", path=""),
            [("write_file", {"content": "\n\n a\n\n", "path": ""})],
        ),
        (
            function("write_file", content="</parameter></parameter></param\n<"),
            [("write_file", {"content": "</parameter></parameter></param\n<"})],
        ),
        (
            "<function=run><parameter=cmd>ls</parameter><parameter=timeout>30.0</parameter>"
            "<parameter=env>{'A': 1, 'B': True}</parameter></function>",
            [("run", {"cmd": "ls", "timeout": 30, "env": {"A": 1, "B": True}})],
        ),
        (
            function("run", cmd="null", timeout="None", background="TRUE", args="['a', \"b'c\"]"),
            [("run", {"cmd": "null", "background": True, "args": ["a", "b'c"]})],
        ),
        (function("plan", note="None", items="[]"), [("plan", {"note": None, "items": []})]),
        (function("now"), [("now", {})]),
        ("<function=now></function>", [("now", {})]),
        (
            function("now") + function("run", cmd="a") + function("run", cmd="a"),
            [("now", {}), ("run", {"cmd": "a"}), ("run", {"cmd": "a"})],
        ),
        (function("Functions.run", cmd="1"), []),
        (function("RUN", cmd="1"), [("run", {"cmd": "1"})]),
        (function("nobody", a="1", b="x\n"), [("nobody", {"a": 1, "b": "x\n"})]),
        (function("run", nothing="1", cmd="x"), [("run", {"nothing": 1, "cmd": "x"})]),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_calls_are_read_at_every_split(
    text: str, calls: list[tuple[str, Any]], streams: bool
) -> None:
    for pieces in splits(text):
        found = calls_in(events_of(XmlCalls, pieces, streams=streams))

        if not calls:
            assert isinstance(found[0], str)
            continue
        assert [(name, arguments) for name, _, arguments in found] == calls
        assert [json.loads(written) for _, written, _ in found] == [each for _, each in calls]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run it",
        '{"name": "run"}',
        "<function=run>",
        "<function=run>\nls\n</function>",
        "<function=" + "x" * 400,
        "<function=../x></function>",
        function("run", cmd="rm -rf /tmp/x")[:-30],
        "<function=run>\n<parameter=cmd>\nls\n</parameter>\n</fun",
    ],
)
def test_what_is_no_whole_call_is_said_to_be_none(text: str) -> None:
    for pieces in splits(text):
        found = events_of(XmlCalls, pieces, streams=False)

        assert len(found) == 1
        assert isinstance(found[0], str)


def test_without_its_wrapper_s_close_a_call_must_be_whole() -> None:
    whole = function("run", cmd="ls")
    without = whole.removesuffix("</function>\n")

    assert len(calls_in(events_of(XmlCalls, [whole], streams=False, closed=False))) == 1
    assert len(calls_in(events_of(XmlCalls, [without], streams=False, closed=True))) == 1
    assert isinstance(events_of(XmlCalls, [without], streams=False, closed=False)[0], str)


def test_strings_stream_while_they_grow_and_other_values_when_they_are_complete() -> None:
    pieces = ["<function=run>\n<parameter=cmd>\nl", 's "x"', "\n", "y\n</para", "meter>\n"]
    pieces += ["<parameter=timeout>\n3", "0\n</parameter>\n</function>", "\n"]

    assert events_of(XmlCalls, pieces) == [
        CallStart("run"),
        CallArguments('{"cmd":"'),
        CallArguments("l"),
        CallArguments('s \\"x\\"'),
        CallArguments("\\ny"),
        CallArguments('"'),
        CallArguments(',"timeout":30'),
        CallArguments("}"),
        CallEnd({"cmd": 'ls "x"\ny', "timeout": 30}),
    ]


@pytest.mark.parametrize("unit", ["ab\n", "</parameter>\n", "</parameter>\n</function>\n ", " "])
def test_long_values_come_in_many_pieces(unit: str) -> None:
    content = unit * (200_000 // len(unit))
    text = function("write_file", content=content)
    pieces = [text[place : place + 4] for place in range(0, len(text), 4)]

    assert events_of(XmlCalls, pieces)[-1] == CallEnd({"content": content})

"""Muse Glimmer's calls, read at every split."""

import json
from typing import Any

import pytest

from models.parsing.atem_call import AtemCalls
from models.parsing.call_body import NotACall
from models.parsing.calls import CallWriter
from tests.models.parsing.call_bodies import TOOLS, calls_in, events_of, no_fault, splits

LITERAL = (
    's = "</atem:parameter>"\nt = "</atem:invoke></atem:function_calls>"\n'
    'u = "<atem:parameter name=\\"path\\">x</atem:parameter>"'
)


def calls(*invokes: str) -> str:
    return "<atem:function_calls>\n" + "".join(invokes) + "</atem:function_calls>"


def invoke(tool: str, **parameters: str) -> str:
    values = "".join(
        f'<atem:parameter name="{key}">{value}</atem:parameter>\n'
        for key, value in parameters.items()
    )
    return f'<atem:invoke name="{tool}">\n{values}</atem:invoke>\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (calls(invoke("now")), [("now", {})]),
        (
            calls(invoke("write_file", path=" a.py ", content="\n\n x\n")),
            [("write_file", {"path": " a.py ", "content": "\n\n x\n"})],
        ),
        (
            calls(invoke("write_file", path="a", content=LITERAL)),
            [("write_file", {"path": "a", "content": LITERAL})],
        ),
        (
            calls(invoke("write_file", content=LITERAL, path="a")),
            [("write_file", {"content": LITERAL, "path": "a"})],
        ),
        (
            calls(invoke("write_file", content="x</atem:parameter>\n</atem:invoke>\nmore")),
            [("write_file", {"content": "x</atem:parameter>\n</atem:invoke>\nmore"})],
        ),
        (
            calls(invoke("write_file", content="</atem:parameter>" + " " * 99 + "</atem:invoke>")),
            [("write_file", {"content": "</atem:parameter>" + " " * 99 + "</atem:invoke>"})],
        ),
        (
            calls(invoke("run", cmd="3", timeout="30.0", background="true", env='{"A": [1]}')),
            [("run", {"cmd": "3", "timeout": 30, "background": True, "env": {"A": [1]}})],
        ),
        (
            calls(invoke("run", cmd="true", timeout="None", args="['a', \"b'c\"]")),
            [("run", {"cmd": "true", "args": ["a", "b'c"]})],
        ),
        (
            calls(invoke("plan", note="null", items='[{"text": "a", "done": false}]')),
            [("plan", {"note": None, "items": [{"text": "a", "done": False}]})],
        ),
        (
            calls(invoke("now"), invoke("run", cmd="a"), invoke("run", cmd="a")),
            [("now", {}), ("run", {"cmd": "a"}), ("run", {"cmd": "a"})],
        ),
        (
            calls(
                '<atem:invoke id="1" name="run" x="y">'
                '<atem:parameter type="s" name="cmd" z>ls</atem:parameter></atem:invoke>'
            ),
            [("run", {"cmd": "ls"})],
        ),
        (calls(invoke("functions.run", cmd="ls")), [("run", {"cmd": "ls"})]),
        (calls(invoke("run.*", cmd="ls")), [("run", {"cmd": "ls"})]),
        (calls(invoke("other", a="1", b="x")), [("other", {"a": 1, "b": "x"})]),
        # Without the tags around, and without all that follows the last value.
        (invoke("run", cmd="ls"), [("run", {"cmd": "ls"})]),
        ('<atem:invoke name="run"><atem:parameter name="cmd">ls', None),
        ('<atem:invoke name="run"><atem:parameter name="cmd">ls</atem:paramet', None),
        (
            '<atem:invoke name="run"><atem:parameter name="cmd">ls</atem:parameter>\n',
            [("run", {"cmd": "ls"})],
        ),
        (
            '<atem:invoke name="run"><atem:parameter name="cmd">ls</atem:parameter></atem:inv',
            [("run", {"cmd": "ls"})],
        ),
        (calls(invoke("run", cmd="ls"))[:-9], [("run", {"cmd": "ls"})]),
        ("", None),
        ("<atem:function_calls></atem:function_calls>", None),
        ("ls -l", None),
        ('{"name": "run"}', None),
        ("<atem:invoke>x", None),
        ("<atem:invoke name='run'>", None),
        ("<atem:" + "x" * 2000, None),
        (calls(invoke("../x")), None),
        (calls(invoke("x" * 300)), None),
    ],
)
def test_calls_are_the_same_at_every_split(
    text: str, expected: list[tuple[str, dict[str, Any]]] | None
) -> None:
    for streams in (True, False):
        for pieces in splits(text):
            events = events_of(AtemCalls, pieces, streams=streams)
            if expected is None:
                assert isinstance(events[-1], str), (streams, pieces)
                continue
            found = calls_in(events)
            assert [(name, arguments) for name, _, arguments in found] == expected, pieces
            assert all(json.loads(written) == arguments for _, written, arguments in found)


def test_a_call_that_is_cut_has_no_end() -> None:
    text = calls(invoke("write_file", path="a.py", content=LITERAL))
    for place in range(text.index("</atem:invoke>\n</atem:function_calls>")):
        body = calls_in([each for each in _text_only(text[:place]) if not isinstance(each, str)])
        assert all(each[0] == "cut" for each in body), place


def test_strings_are_streamed_and_never_taken_back() -> None:
    text = calls(invoke("write_file", content="one two </atem:parameter> three", path="p"))
    seen = ""
    for name, written in ((each[1], each[2]) for each in calls_in(_text_only(text[:120]))):
        assert name == "write_file"
        seen = written
    whole = calls_in(events_of(AtemCalls, [text]))[0][1]
    assert "one two" in seen
    assert whole.startswith(seen)


def _text_only(text: str) -> list[Any]:
    body = AtemCalls(TOOLS, CallWriter(no_fault, streams=True))
    events: list[Any] = []
    try:
        for each in text:
            events.extend(body.text(each))
    except NotACall:
        events.append("not a call")
    return events

"""Gemma 4's calls, read at every split."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from models.parsing.call_body import NotACall
from models.parsing.calls import CallWriter
from models.parsing.events import Event
from models.parsing.gemma_call import QUOTE, GemmaCall
from tests.models.parsing.call_bodies import TOOLS, calls_in, no_fault, splits

Q = QUOTE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call:now{}", ("now", {})),
        (" call:now { }\n", ("now", {})),
        ("call:run{env:{A:1,},timeout:1,}", ("run", {"env": {"A": 1}, "timeout": 1})),
        (f"call:run{{cmd:{Q}ls -l{Q}}}", ("run", {"cmd": "ls -l"})),
        (
            f"call:run{{args:[{Q}a{Q},{Q}{Q}],background:true,cmd:{Q}x{Q},env:{{A:1,B:{{}}}}}}",
            ("run", {"args": ["a", ""], "background": True, "cmd": "x", "env": {"A": 1, "B": {}}}),
        ),
        (
            f'call:write_file{{content:{Q} "a"\\\n\t{{b}},[c]:d é 👍 {Q},path:{Q}p{Q}}}',
            ("write_file", {"content": ' "a"\\\n\t{b},[c]:d é 👍 ', "path": "p"}),
        ),
        # The marker inside of a string.
        (
            f"call:write_file{{content:{Q}s = {Q}x{Q}, and {Q}{Q} y{Q},path:{Q}p{Q}}}",
            ("write_file", {"content": f"s = {Q}x{Q}, and {Q}{Q} y", "path": "p"}),
        ),
        (
            f"call:run{{args:[{Q}a {Q} b{Q},{Q}c{Q}]}}",
            ("run", {"args": [f"a {Q} b", "c"]}),
        ),
        (f"call:run{{ {Q}cmd{Q} : {Q}x{Q} , timeout : 3 }}", ("run", {"cmd": "x", "timeout": 3})),
        (
            f"call:run{{cmd:{Q}x{Q},{Q}timeout{Q}:3}}",
            ("run", {"cmd": "x", "timeout": 3}),
        ),
        (
            "call:plan{items:[{done:False,text:None},{}],note:null}",
            ("plan", {"items": [{"done": False, "text": None}, {}], "note": None}),
        ),
        (
            "call:run{timeout:9007199254740993,a:-1.5e3,b:ls,c:2026-01-01}",
            ("run", {"timeout": 9007199254740993, "a": -1500.0, "b": "ls", "c": "2026-01-01"}),
        ),
        ("call:functions.run{}", ("run", {})),
        ("call:other{a:1}", ("other", {"a": 1})),
        ("", None),
        ("call:run", None),
        ("run{}", None),
        ("call:../x{}", None),
        ("call:" + "x" * 400, None),
        (f"call:run{{cmd:{Q}x", None),
        (f"call:run{{cmd:{Q}x{Q}", None),
        ("call:run{timeout:3", None),
        ("call:run{timeout:3]", None),
        ("call:run{timeout 3}", None),
        ("call:run{[}", None),
        ("call:run{} and more", None),
        (f"call:run{{a{Q}x{Q}}}", None),
        (f"call:run{{timeout:3{Q}}}", None),
        ("call:run{a:" + "[" * 100_000, None),
    ],
)
def test_a_call_is_the_same_at_every_split(
    text: str, expected: tuple[str, dict[str, Any]] | None
) -> None:
    for streams in (True, False):
        for pieces in [[text]] if len(text) > 1000 else splits_around_markers(text):
            events = _events(pieces, streams=streams)
            if expected is None:
                assert events[-1] == "not a call", (streams, pieces)
                continue
            [(name, written, arguments)] = calls_in(events)
            assert (name, arguments) == expected, pieces
            assert json.loads(written) == arguments


def test_a_call_that_is_cut_has_no_end() -> None:
    text = f"call:run{{args:[{Q}a{Q}],cmd:{Q}rm -rf {Q} x{Q},timeout:30}}"
    pieces = [each for part in _parts(text) for each in ([part] if part == Q else part)]
    for count in range(len(pieces)):
        body = calls_in(_events(pieces[:count], streams=True, ended=False))
        assert all(each[0] == "cut" for each in body)


def test_what_is_no_call_can_be_shown() -> None:
    body = GemmaCall(TOOLS, CallWriter(no_fault, streams=False))
    for part in _parts(f"call:run{{cmd:{Q}x{Q}"):
        assert not list(body.quote() if part == Q else body.text(part))
    with pytest.raises(NotACall):
        list(body.text("}]"))
    assert body.unread == f"call:run{{cmd:{Q}x{Q}}}]"


def _parts(text: str) -> list[str]:
    return [each for each in re.split(f"({re.escape(Q)})", text) if each]


def splits_around_markers(text: str) -> Iterator[list[str]]:
    """Every split of the text, but for its markers, which are tokens."""
    parts = _parts(text)
    yield parts
    for place, part in enumerate(parts):
        if part != Q:
            for pieces in splits(part):
                yield [*parts[:place], *pieces, *parts[place + 1 :]]


def _events(pieces: Sequence[str], *, streams: bool, ended: bool = True) -> list[Event | str]:
    body = GemmaCall(TOOLS, CallWriter(no_fault, streams=streams))
    events: list[Event | str] = []
    try:
        for each in pieces:
            events.extend(body.quote() if each == Q else body.text(each))
        if ended:
            events.extend(body.end(closed=True))
    except NotACall:
        events.append("not a call")
    return events

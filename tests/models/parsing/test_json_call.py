import json
from typing import Any

import pytest

from models.parsing.events import CallArguments, CallEnd, CallStart
from models.parsing.json_call import JsonCalls
from tests.models.parsing.call_bodies import calls_in, events_of, splits

CONTENT = 'ü "</tool_call>" \\ {"name": "run"} \n 😀'
DUMPED = json.dumps({"path": "a.py", "content": CONTENT})


def call(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f'\n{{"name": "write_file", "arguments": {DUMPED}}}\n', [("write_file", DUMPED)]),
        (f'{{"arguments": {DUMPED}, "name": "write_file"}}', [("write_file", DUMPED)]),
        ('{"id":[{"a":"}"}],"name":"now","arguments":{},"n":-1.5e3}', [("now", "{}")]),
        ('{"name":"now"}', [("now", "{}")]),
        (f"[{call('now', {})}, {call('run', {'cmd': 'ls'})}]", [("now", "{}"), ("run", None)]),
        (f"{call('now', {})}\n{call('now', {})}", [("now", "{}"), ("now", "{}")]),
        ('{"name":"Run","arguments":{"cmd":"x"}}', [("run", '{"cmd":"x"}')]),
        ('{"name":"functions.run","arguments":{ }}', [("run", "{ }")]),
        ('{"name":"nobody\\u0073","arguments":{}}', [("nobodys", "{}")]),
        ('{"name":"run","arguments":{"cmd":"<tool_call>\\ud83c\\udf78"}}', [("run", None)]),
        ('{"name":"run","arguments":{"timeout":12345678901234567890123}}', [("run", None)]),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_calls_are_read_at_every_split(
    text: str, calls: list[tuple[str, str | None]], streams: bool
) -> None:
    for pieces in splits(text):
        found = calls_in(events_of(JsonCalls, pieces, streams=streams))

        assert [name for name, _, _ in found] == [name for name, _ in calls]
        for (_, written, arguments), (_, expected) in zip(found, calls, strict=True):
            assert json.loads(written) == arguments
            if streams and expected is not None:
                assert written == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "run it",
        '{"name": "run"',
        '{"name": "run", "arguments": {"cmd": "rm -rf /tmp/x',
        '{"name": "run", "arguments": {"cmd": "rm"}',
        '{"name": "run", "arguments": "ls"}',
        '{"name": "run", "arguments": ["ls"]}',
        '{"name": "run", "arguments": {"cmd": NaN}}',
        '{"name": "run", "arguments": {"cmd": "\\uZZZZ"}}',
        '{"name": "../x", "arguments": {}}',
        '{"name": "' + "x" * 300 + '", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name" "run"}',
        '{"name": "run", "arguments": ' + "[" * 300,
        '{"name": "run",} x',
    ],
)
def test_what_is_no_whole_call_is_said_to_be_none(text: str) -> None:
    for pieces in splits(text):
        found = events_of(JsonCalls, pieces, streams=False)

        assert len(found) == 1
        assert isinstance(found[0], str)


def test_arguments_stream_as_they_are_written() -> None:
    events = events_of(JsonCalls, ['{"name": "run", "argu', 'ments": {"c', 'md" : "l', 's"}', "}"])

    assert events == [
        CallStart("run"),
        CallArguments('{"c'),
        CallArguments('md" : "l'),
        CallArguments('s"}'),
        CallEnd({"cmd": "ls"}),
    ]


@pytest.mark.parametrize(
    ("written", "streamed"),
    [
        (r"\ud83d\ude00", r"\ud83d\ude00"),
        (r"\ud83d\ud83d\ude00 \u00e9\n\\ud83d", r"\ufffd\ud83d\ude00 \u00e9\n\\ud83d"),
        (r"\ud83d", r"\ufffd"),
        (r"\ude00\ud83d\n", r"\ufffd\ufffd\n"),
    ],
)
def test_no_piece_holds_half_a_character(written: str, streamed: str) -> None:
    for pieces in splits('{"name": "run", "arguments": {"cmd": "' + written + '"}}'):
        events = events_of(JsonCalls, pieces)
        parts = [each.json for each in events if isinstance(each, CallArguments)]

        assert "".join(parts) == '{"cmd": "' + streamed + '"}'
        for each in parts[:-1]:
            json.loads('"' + each.rpartition('"')[2] + '"').encode()


def test_long_arguments_come_in_many_pieces() -> None:
    content = 'ab"\n' * 50_000
    text = call("write_file", {"content": content})
    pieces = [text[place : place + 4] for place in range(0, len(text), 4)]

    assert events_of(JsonCalls, pieces)[-1] == CallEnd({"content": content})

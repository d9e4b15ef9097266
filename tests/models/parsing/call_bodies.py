"""Call bodies read whole and at every split, and what tools the cases are about."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.conversation import Tool
from models.parsing.call_body import CallBody, NotACall
from models.parsing.calls import CallWriter
from models.parsing.events import CallArguments, CallEnd, CallStart, Event, InvalidCall


def tool(name: str, properties: dict[str, Any], *required: str) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name, f"The tool {name}.", schema)


TOOLS = (
    tool("write_file", {"path": {"type": "string"}, "content": {"type": "string"}}),
    tool(
        "run",
        {
            "cmd": {"type": "string"},
            "timeout": {"type": "integer"},
            "background": {"type": "boolean"},
            "env": {"type": "object"},
            "args": {"type": "array", "items": {"type": "string"}},
        },
        "cmd",
    ),
    tool("now", {}),
    tool(
        "plan",
        {
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"text": {"type": "string"}, "done": {"type": "boolean"}},
                },
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    ),
)

Make = Callable[[Sequence[Tool], CallWriter], CallBody]


def splits(text: str) -> Iterator[list[str]]:
    """The whole, each character by itself, and every cut in two."""
    yield [text]
    yield list(text)
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]


def no_fault(name: str, arguments: dict[str, Any]) -> str | None:
    return None


def events_of(
    make: Make, pieces: Sequence[str], *, streams: bool = True, closed: bool = True
) -> list[Event | str]:
    """The events; last, what the body has made no call of, if it says that something is none."""
    body = make(TOOLS, CallWriter(no_fault, streams=streams))
    events: list[Event | str] = []
    try:
        for each in pieces:
            events.extend(body.text(each))
        events.extend(body.end(closed=closed))
    except NotACall:
        # Where it noticed does not matter: the rest would be shown as text as well.
        read = sum(len(each) for each in pieces)
        events.append(f"not a call, {'named' if body.name else 'unnamed'}, of {read}")
    return events


def calls_in(events: Sequence[Event | str]) -> list[Any]:
    """Each call as (name, its JSON as it was streamed, its arguments), and all else as it is."""
    found: list[Any] = []
    name, pieces = "", list[str]()
    for event in events:
        match event:
            case CallStart():
                name, pieces = event.name, []
            case CallArguments():
                pieces.append(event.json)
            case CallEnd():
                found.append((name, "".join(pieces), event.arguments))
                pieces = []
            case InvalidCall() | str():
                found.append(event)
            case _:
                raise AssertionError(event)
    return [*found, ("cut", name, "".join(pieces))] if pieces else found

"""What an answer is made of, as it comes: families' parsers emit it, everybody else reads it.

Blocks follow each other: text ends where anything else begins, thinking with `ThinkingEnd`, a call
with `CallEnd`. A call that is cut short, by the budget or by an engine that failed, has no end.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingEnd:
    pass


@dataclass(frozen=True, slots=True)
class CallStart:
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON object of a call's arguments; the pieces, joined, are the object."""

    json: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """A call that must not be published, though it was read. The answer ends with it.

    `why` is a sentence without what the model wrote.
    """

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The text has reached a stop sequence: the answer is over."""

    sequence: str


Event = (
    TextDelta
    | ThinkingDelta
    | ThinkingEnd
    | CallStart
    | CallArguments
    | CallEnd
    | InvalidCall
    | Stopped
)

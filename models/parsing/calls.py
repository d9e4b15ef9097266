"""Calls on their way out of a parser: published while they grow, or held until they are valid."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.conversation import Tool
from models.parsing.events import CallArguments, CallEnd, CallStart, Event, InvalidCall
from models.parsing.json_text import write_json

# What some models put before the name of a tool.
_PREFIXES = ("functions.", "default_api.", "default_api:", "tools.")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")

Fault = Callable[[str, dict[str, Any]], str | None]


def tool_name(written: str, tools: Sequence[Tool]) -> str | None:
    """The tool that is meant by the name that the model wrote; None if it cannot be one.

    A name that is nobody's is given as it is, so that the client can answer that there is no such
    tool.
    """
    declared = {each.name for each in tools}
    written = written.strip()
    for name in (written, *(written.removeprefix(each) for each in _PREFIXES)):
        if name in declared:
            return name
    similar = [each for each in declared if each.lower() == written.lower()]
    if len(similar) == 1:
        return similar[0]
    return written if _NAME.fullmatch(written) else None


class CallWriter:
    """Publishes one call after the other. Nothing that was published is ever taken back.

    With `streams`, arguments go out while they grow: whoever calls it answers for it that they
    will be valid. Without, a call is published whole once its end is there and `fault`, which gets
    its name and arguments, finds none.
    """

    def __init__(self, fault: Fault, *, streams: bool) -> None:
        self._fault = fault
        self._streams = streams
        self._name = ""

    def start(self, name: str) -> Iterator[Event]:
        self._name = name
        if self._streams:
            yield CallStart(name)

    def arguments(self, json: str) -> Sequence[Event]:
        """The next piece of the arguments' JSON object."""
        return (CallArguments(json),) if self._streams and json else ()

    def end(self, arguments: dict[str, Any]) -> Iterator[Event]:
        """The call is complete; `arguments` are what the pieces say."""
        if self._streams:
            yield CallEnd(arguments)
        elif why := self._fault(self._name, arguments):
            yield InvalidCall(self._name, why)
        else:
            yield CallStart(self._name)
            yield CallArguments(write_json(arguments))
            yield CallEnd(arguments)

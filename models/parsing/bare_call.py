"""Answers that are nothing but one call in JSON, bare or in a fence, without a call's markers."""

import re
from collections.abc import Sequence

from models.conversation import Tool
from models.parsing.call_body import NotACall
from models.parsing.calls import CallWriter, Fault
from models.parsing.events import Event, InvalidCall
from models.parsing.json_call import JsonCalls

_FENCE = "```"
_BEGINNING = re.compile(r"\s{0,64}(```(?:json)?[ \t]{0,8}\n\s{0,64})?(?={)")
_MAY_BEGIN = re.compile(r"\s{0,64}(`{0,3}|```j?s?o?n?[ \t]{0,8}(\n\s{0,64})?)")
_MOST_AFTER = 64


class BareCall:
    """Holds an answer for as long as it can still become one call of a declared tool and nothing
    else: some checkpoints write their calls so, though their templates teach them otherwise."""

    def __init__(self, tools: Sequence[Tool], fault: Fault) -> None:
        self._names = {each.name for each in tools}
        self._call = JsonCalls(tools, CallWriter(fault, streams=False), strict=True)
        self._held: list[str] = []
        self._beginning: str | None = ""
        self._fenced = False
        self._after = ""
        self._events: list[Event] = []

    @property
    def held(self) -> str:
        return "".join(self._held)

    def feed(self, text: str) -> bool:
        """Whether it can still become one."""
        self._held.append(text)
        if self._beginning is not None:
            self._beginning += text
            found = _BEGINNING.match(self._beginning)
            if not found:
                return _MAY_BEGIN.fullmatch(self._beginning) is not None
            self._fenced = bool(found[1])
            text, self._beginning = self._beginning[found.end() :], None
        return self._goes_on(text)

    def end(self) -> list[Event]:
        """The call that it was; nothing if it was none."""
        return self._events if self._call.calls else []

    def _goes_on(self, text: str) -> bool:
        for part in re.split(r"(?<=})", text):
            if self._call.calls:
                self._after += part
                continue
            try:
                self._events += self._call.text(part)
            except NotACall:
                return False
            if self._call.name is not None and self._call.name not in self._names:
                return False
        if any(isinstance(each, InvalidCall) for each in self._events):
            return False
        close = _FENCE if self._fenced else ""
        return len(self._after) <= _MOST_AFTER and close.startswith(self._after.strip())

"""What Muse Glimmer writes: messages to itself, to the user, and to tools."""

import re
from collections.abc import Iterator
from enum import Enum, auto

from models.conversation import AnswerForm
from models.parsing.atem_call import AtemCalls
from models.parsing.call_body import NotACall
from models.parsing.calls import CallWriter, Fault
from models.parsing.events import CallEnd, CallStart, Event, InvalidCall
from models.parsing.prose import Prose
from models.parsing.syntax import Syntax

START, MESSAGE, MESSAGE_END = "<|start|>", "<|message|>", "<|eom|>"
TURN_END = "<|eot|>"
MARKERS = (START, MESSAGE, MESSAGE_END)

_RECIPIENT = re.compile(r"\bto=(\S+)")
_SELF = "self"
# Those that the user reads; a message without a recipient is for the user as well.
_USERS = ("user", "commentary")
RECIPIENTS = frozenset({_SELF, *_USERS})
# No header is as long, or has more than one line.
_MAX_HEADER = 400


class _At(Enum):
    HEADER = auto()
    THOUGHT = auto()
    TEXT = auto()
    CALLS = auto()
    AFTER_CALLS = auto()  # in a message to a tool, of which all calls are there
    OVER = auto()  # the one call that there may be is there


class GlimmerSyntax(Syntax):
    """Messages to a tool hold calls, and no other messages do. What is no call after all is text,
    and so is what has no header."""

    def __init__(self, form: AnswerForm, fault: Fault, opens: str) -> None:
        self._form = form
        self._writer = CallWriter(fault, streams=form.guided)
        self._prose = Prose(
            may_call=form.may_call, leads_to_calls_thinks=form.thinking.kind == "between_tools"
        )
        self._at = _At.TEXT if opens == "text" else _At.HEADER
        self._header = ""
        self._follows_text = False  # this message
        self._calls = AtemCalls((), self._writer)

    @property
    def thinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._at is _At.THOUGHT

    def text(self, text: str) -> Iterator[Event]:
        if self._at is _At.CALLS:
            yield from self._calling(self._calls.text(text))
        elif self._at is _At.TEXT:
            yield from self._prose.text(text)
        elif self._at is _At.THOUGHT:
            yield from self._prose.thinking(text)
        elif self._at is _At.HEADER:
            self._header += text
            if len(self._header) > _MAX_HEADER or "\n" in self._header.strip():
                yield from self._begin_text(self._header)

    def marker(self, marker: str) -> Iterator[Event]:
        match self._at, marker:
            case _At.OVER, _:
                pass
            case _At.HEADER, "<|message|>":
                yield from self._begin_message()
            case _At.HEADER, "<|eom|>":
                yield from self._without_header()
            case _, "<|start|>" | "<|eom|>":
                yield from self._end_message()
                self._at, self._header = _At.HEADER, ""
            case _:
                yield from self.text(marker)

    def end(self, *, cut: bool) -> Iterator[Event]:
        if self._at is _At.HEADER:
            yield from self._without_header()
        if self._at is not _At.CALLS or not cut:
            yield from self._end_message()
        yield from self._prose.end()

    def _begin_message(self) -> Iterator[Event]:
        found = _RECIPIENT.search(self._header)
        recipient = found[1] if found else None
        if recipient == _SELF:
            self._at = _At.THOUGHT
        elif recipient is None or recipient in _USERS or not self._form.may_call:
            yield from self._begin_text("")
        else:
            self._at = _At.CALLS
            self._calls = AtemCalls(self._form.callable_tools, self._writer)

    def _without_header(self) -> Iterator[Event]:
        header, self._header = self._header, ""
        if not _RECIPIENT.search(header):
            yield from self._begin_text(header)
            yield from self._end_message()
            self._at = _At.HEADER

    def _begin_text(self, text: str) -> Iterator[Event]:
        self._at = _At.TEXT
        if self._follows_text:
            yield from self._prose.text("\n\n")
        yield from self._prose.text(text)

    def _end_message(self) -> Iterator[Event]:
        if self._at is _At.THOUGHT:
            yield from self._prose.end()
        if self._at is _At.CALLS:
            yield from self._calling(self._calls.end(closed=True))
        if self._at is not _At.HEADER:
            self._follows_text = self._at is _At.TEXT

    def _calling(self, events: Iterator[Event]) -> Iterator[Event]:
        try:
            for event in events:
                if isinstance(event, CallStart):
                    yield from self._prose.end(call_follows=True)
                yield event
                if isinstance(event, CallEnd) and not self._form.choice.parallel:
                    self._at = _At.OVER
                    return
        except NotACall as error:
            if self._calls.calls and self._calls.name is None:
                self._at = _At.AFTER_CALLS
            elif self._form.guided and self._calls.name is not None:  # its beginning is published
                yield InvalidCall(self._calls.name, f"the call broke off: {error}")
                self._at = _At.OVER
            else:
                yield from self._begin_text(self._calls.unread)

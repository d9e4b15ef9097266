"""What Gemma 4 writes: channels of thought, text, and calls."""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, auto

from models.conversation import AnswerForm
from models.parsing.aside import Aside
from models.parsing.call_body import NotACall
from models.parsing.calls import CallWriter, Fault
from models.parsing.code_spans import CodeSpans
from models.parsing.events import CallStart, Event, InvalidCall
from models.parsing.gemma_call import QUOTE, GemmaCall
from models.parsing.prose import Prose
from models.parsing.syntax import Syntax

CHANNEL, CHANNEL_END = "<|channel>", "<channel|>"
CALL, CALL_END = "<|tool_call>", "<tool_call|>"
MARKERS = (CHANNEL, CHANNEL_END, CALL, CALL_END, QUOTE)
# The name of the channel that thinking is in, and its line's end.
THOUGHT = "thought\n"


class _At(Enum):
    TEXT = auto()
    THOUGHT = auto()
    CALL = auto()
    OVER = auto()  # the one call that there may be is there


class Gemma4Syntax(Syntax):
    """A call is what stands after its opener, unless that stands in quoted code. What is no call
    after all is text.

    What stands in thinking from a call's opener on is held aside.
    """

    def __init__(self, form: AnswerForm, fault: Fault, opens: str) -> None:
        self._form, self._fault = form, fault
        self._writer = CallWriter(fault, streams=form.guided)
        self._prose = Prose(
            may_call=form.may_call, leads_to_calls_thinks=form.thinking.kind == "between_tools"
        )
        self._code = CodeSpans()
        self._call: GemmaCall | None = None
        self._at = _At.THOUGHT if opens == "thought" else _At.TEXT
        self._name: str | None = None  # of the channel, as far as it is there
        self._aside = Aside()
        self._line_end = ""  # which may be the last of a thought, and belongs to the close then

    @property
    def thinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._at is _At.THOUGHT

    def text(self, text: str) -> Iterator[Event]:
        if self._at is _At.TEXT:
            self._code.feed(text)
            yield from self._prose.text(text)
        elif self._at is _At.CALL:
            assert self._call is not None
            yield from self._calling(self._call.text(text))
        elif self._aside:
            self._aside.text(text)
        elif self._at is _At.THOUGHT:
            yield from self._thought(text)

    def marker(self, marker: str) -> Iterator[Event]:
        if self._at is _At.CALL:
            yield from self._marker_in_call(marker)
        elif self._at is _At.OVER:
            return
        elif self._aside and marker != CHANNEL_END:
            self._aside.marker(marker)
        elif marker == CALL and self._form.may_call and not self._is_quoted:
            if self._at is _At.THOUGHT:
                self._aside.marker(marker)
                return
            self._call = GemmaCall(self._form.callable_tools, self._writer)
            self._at = _At.CALL
        elif marker == CHANNEL and not self._is_quoted:
            yield from self._end_prose()
            self._at, self._name = _At.THOUGHT, ""
        elif marker == CHANNEL_END and not self._is_quoted:
            if self._at is _At.THOUGHT:  # otherwise it closes nothing
                yield from self._end_prose()
            self._at = _At.TEXT
        else:
            yield from self.text(marker)

    def end(self, *, cut: bool) -> Iterator[Event]:
        calls = self._calls_aside() if self._aside and not cut else []
        if calls:
            self._aside.taken()
        if self._at is not _At.CALL:
            yield from self._end_prose()
            yield from calls
        elif not cut:
            yield from self._end_call(closed=False)
            yield from self._end_prose()

    @property
    def _is_quoted(self) -> bool:
        return self._at is _At.TEXT and self._code.inside

    def _thought(self, text: str) -> Iterator[Event]:
        if self._name is not None:
            self._name += text
            if self._name != THOUGHT and THOUGHT.startswith(self._name):
                return
            text, self._name = self._name.removeprefix(THOUGHT), None
        text = self._line_end + text
        self._line_end = "\n" if text.endswith("\n") else ""
        yield from self._prose.thinking(text.removesuffix("\n"))

    def _calls_aside(self) -> list[Event]:
        read = Gemma4Syntax(replace(self._form, guided=False), self._fault, "text")
        return self._aside.calls(read, self._form.callable_tools)

    def _end_prose(self) -> Iterator[Event]:
        if aside := self._aside.taken():
            yield from self._thought(aside)
        if self._name and self._name != THOUGHT.strip():  # a channel without a name
            yield from self._prose.thinking(self._name)
        self._name, self._line_end = None, ""
        yield from self._prose.end()

    def _marker_in_call(self, marker: str) -> Iterator[Event]:
        assert self._call is not None
        if marker == QUOTE:
            yield from self._calling(self._call.quote())
        elif not self._call.closable:
            yield from self._calling(self._call.text(marker))
        elif marker == CALL_END:
            yield from self._end_call(closed=True)
        else:  # the call has no close of its own, or is none
            yield from self._end_call(closed=False)
            yield from self.marker(marker)

    def _end_call(self, *, closed: bool) -> Iterator[Event]:
        assert self._call is not None
        yield from self._calling(self._call.end(closed=closed))
        if self._at is _At.CALL:
            self._at = _At.TEXT if self._form.choice.parallel else _At.OVER

    def _calling(self, events: Iterator[Event]) -> Iterator[Event]:
        assert self._call is not None
        try:
            for event in events:
                if isinstance(event, CallStart):
                    yield from self._prose.end(call_follows=True)
                yield event
        except NotACall as error:
            if self._form.guided and self._call.name is not None:  # its beginning is published
                yield InvalidCall(self._call.name, f"the call broke off: {error}")
                self._at = _At.OVER
            else:
                self._at = _At.TEXT
                yield from self.text(CALL + self._call.unread)

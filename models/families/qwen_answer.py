"""What Qwen's checkpoints write: thinking, text, and calls in JSON or in tags."""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, auto

from models.conversation import AnswerForm
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END, Dialect
from models.parsing.aside import Aside
from models.parsing.bare_call import BareCall
from models.parsing.call_body import CallBody, NotACall
from models.parsing.calls import CallWriter, Fault
from models.parsing.code_spans import CodeSpans
from models.parsing.events import CallArguments, CallEnd, Event, InvalidCall
from models.parsing.json_call import JsonCalls
from models.parsing.prose import Prose
from models.parsing.syntax import Syntax
from models.parsing.xml_call import XmlCalls


class _At(Enum):
    TEXT = auto()
    THINKING = auto()
    CALL = auto()
    OVER = auto()  # the one call that there may be is there


class QwenSyntax(Syntax):
    """A call is what stands after its opener, unless that stands in quoted code. What is no call
    after all is text.

    What stands in thinking from a call's opener on is held aside.
    """

    def __init__(
        self,
        form: AnswerForm,
        dialect: Dialect,
        fault: Fault,
        opens: str,
        *,
        reads_bare: bool = True,
    ) -> None:
        self._form, self._dialect, self._fault = form, dialect, fault
        self._at = _At.THINKING if opens == "thinking" else _At.TEXT
        self._prose = Prose(
            may_call=form.may_call, leads_to_calls_thinks=form.thinking.kind == "between_tools"
        )
        self._thought = _Trimmed()
        self._aside = Aside()
        self._code = CodeSpans()
        self._has_text = False
        self._call: CallBody | None = None
        self._is_led_to = False  # by what stands before, and nothing of it was published
        reads_bare = reads_bare and form.may_call and dialect.calls == "json"
        self._bare = BareCall(form.callable_tools, fault) if reads_bare else None

    @property
    def thinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._at is _At.THINKING

    def text(self, text: str) -> Iterator[Event]:
        if self._at is _At.CALL:
            assert self._call is not None
            yield from self._calling(self._call.text(text))
        elif self._at is _At.TEXT:
            if self._bare is None:
                yield from self._show(text)
            elif not self._bare.feed(text):
                yield from self._show_held()
        elif self._at is _At.THINKING:
            if self._aside:
                self._aside.text(text)
            else:
                yield from self._think(text)

    def marker(self, marker: str) -> Iterator[Event]:
        match self._at:
            case _At.TEXT:
                yield from self._show_held()
                yield from self._marker_in_text(marker)
            case _At.THINKING:
                yield from self._marker_in_thinking(marker)
            case _At.CALL:
                yield from self._marker_in_call(marker)
            case _At.OVER:
                pass

    def end(self, *, cut: bool) -> Iterator[Event]:
        if self._at is _At.CALL:
            if cut:
                yield from self._prose.end()
                return
            yield from self._end_call(closed=False)
        if self._aside:
            yield from self._end_aside(may_call=not cut)
        if self._bare is not None and not cut and (call := self._bare.end()):
            yield from (*self._prose.end(call_follows=True), *call)
            return
        yield from self._show_held()
        yield from self._prose.end()

    def _show(self, text: str) -> Iterator[Event]:
        self._has_text = self._has_text or not text.isspace()
        self._code.feed(text)
        return self._prose.text(text)

    def _show_held(self) -> Iterator[Event]:
        """What was held is no call."""
        if self._bare is not None:
            held, self._bare = self._bare.held, None
            if held:
                yield from self._show(held)

    def _think(self, text: str) -> Iterator[Event]:
        if text := self._thought.feed(text):
            yield from self._prose.thinking(text)

    def _begin_text(self) -> None:
        self._at = _At.TEXT
        self._code = CodeSpans()
        self._has_text = False

    def _marker_in_text(self, marker: str) -> Iterator[Event]:
        if self._code.inside:
            yield from self._show(marker)
        elif marker == CALL and self._form.may_call:
            body = JsonCalls if self._dialect.calls == "json" else XmlCalls
            writer = CallWriter(self._fault, streams=self._form.guided)
            self._call = body(self._form.callable_tools, writer, CALL_END)
            self._is_led_to = True
            self._at = _At.CALL
        elif marker == THINK and self._dialect.thinks:
            yield from self._prose.end()
            self._at = _At.THINKING
        elif marker == THINK_END and self._dialect.thinks and not self._has_text:
            pass  # of thinking that has ended
        else:
            yield from self._show(marker)

    def _marker_in_thinking(self, marker: str) -> Iterator[Event]:
        if marker == THINK_END:
            yield from self._end_aside(may_call=False)
            self._thought = _Trimmed()
            yield from self._prose.thinking("")  # of which there may have been none
            yield from self._prose.end()
            self._begin_text()
        elif self._aside or (marker == CALL and self._form.may_call):
            self._aside.marker(marker)
        elif marker != THINK or self._thought.has_begun:
            yield from self._think(marker)

    def _end_aside(self, *, may_call: bool) -> Iterator[Event]:
        calls = self._calls_aside() if may_call else []
        aside = self._aside.taken()
        if calls:
            yield from (*self._prose.end(), *calls)
        else:
            yield from self._think(aside)

    def _calls_aside(self) -> list[Event]:
        held = replace(self._form, guided=False)
        read = QwenSyntax(held, self._dialect, self._fault, "text", reads_bare=False)
        return self._aside.calls(read, self._form.callable_tools)

    def _marker_in_call(self, marker: str) -> Iterator[Event]:
        assert self._call is not None
        if not self._call.closable:
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
            self._begin_text()

    def _calling(self, events: Iterator[Event]) -> Iterator[Event]:
        assert self._call is not None
        try:
            for event in events:
                if self._is_led_to:  # what stood before stays as it is until there is a call
                    yield from self._prose.end(call_follows=True)
                    self._is_led_to = False
                yield event
                if isinstance(event, CallArguments):
                    continue
                is_last = isinstance(event, CallEnd) and not self._form.choice.parallel
                if is_last or isinstance(event, InvalidCall):
                    self._at = _At.OVER
                    return
        except NotACall as error:
            if self._form.guided and self._call.name is not None:  # its beginning is published
                self._at = _At.OVER
                yield InvalidCall(self._call.name, f"the call broke off: {error}")
            else:
                self._begin_text()
                yield from self._show(("" if self._call.calls else CALL) + self._call.unread)


class _Trimmed:
    """Text in pieces, without the white space around it."""

    def __init__(self) -> None:
        self.has_begun = False
        self._space: list[str] = []

    def feed(self, text: str) -> str:
        shown = text.rstrip() if self.has_begun else text.strip()
        if shown:
            shown = "".join((*self._space, shown))
            self._space.clear()
        if shown or self.has_begun:
            self._space.append(text[len(text.rstrip()) :])
        self.has_begun = self.has_begun or bool(shown)
        return shown

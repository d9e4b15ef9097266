"""One answer, from token ids to what it is made of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from models.parsing.events import Event, Stopped, TextDelta
from models.parsing.stop_sequences import StopSequences
from models.parsing.syntax import Syntax
from models.parsing.token_text import TokenBytes, TokenText


class AnswerParser:
    """Feed it every generated id but the stop id, in order, until it says `Stopped`; then end it.

    `markers` are the ids that its syntax knows as markers, with their text. Stop sequences are
    looked for in the text of one block at a time.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        syntax: Syntax,
        *,
        markers: Mapping[int, str] | None = None,
        stop_sequences: Sequence[str] = (),
    ) -> None:
        self.thinking_tokens = 0
        self._text = TokenText(token_bytes)
        self._syntax = syntax
        self._markers = markers or {}
        self._stop_sequences = stop_sequences
        self._stops = StopSequences(stop_sequences)
        self._in_text = False

    def feed(self, token: int) -> list[Event]:
        before = self._syntax.thinks
        events = list(self._stopping(self._read(token)))
        if before or self._syntax.thinks:
            self.thinking_tokens += 1
        return events

    def end(self, *, cut: bool) -> list[Event]:
        """What was held back, now that the model has ended its answer or was `cut` short."""
        events = list(self._stopping(self._read_end(cut)))
        if self._in_text and not (events and isinstance(events[-1], Stopped)):
            events += _text(self._stops.flush())
        return events

    def _read(self, token: int) -> Iterator[Event]:
        marker = self._markers.get(token)
        if marker is None:
            if text := self._text.feed(token):
                yield from self._syntax.text(text)
            return
        if text := self._text.flush():
            yield from self._syntax.text(text)
        yield from self._syntax.marker(marker)

    def _read_end(self, cut: bool) -> Iterator[Event]:
        if text := self._text.flush():
            yield from self._syntax.text(text)
        yield from self._syntax.end(cut=cut)

    def _stopping(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events up to the first stop sequence in text."""
        for event in events:
            if not isinstance(event, TextDelta):
                if self._in_text:
                    yield from _text(self._stops.flush())
                self._in_text = False
                yield event
                continue
            if not self._in_text:
                self._in_text = True
                self._stops = StopSequences(self._stop_sequences)
            passed = self._stops.feed(event.text)
            yield from _text(passed.text)
            if passed.matched is not None:
                yield Stopped(passed.matched)
                return


def _text(text: str) -> list[Event]:
    return [TextDelta(text)] if text else []

"""One answer as it is generated: token ids in, pieces of content out, and how it ended."""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto

from models.engine.protocol import ids_of
from models.parsing import events
from models.parsing.answer import AnswerParser
from service.errors import ApiError
from service.ids import call_id
from service.requests.answer_plan import AnswerPlan
from service.wire.responses import StopReason
from storage.answer_pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Signature,
    TextPiece,
    ThinkingPiece,
)

# A thinking text and its number among those of the message, from 0, to its signature. The same
# whenever it is asked, since an answer that is read again is to be the same.
Sign = Callable[[str, int], str]


class _Open(Enum):
    TEXT = auto()
    THINKING = auto()
    CALL = auto()


class Answer:
    """The same whether its ids come from the engine now or from a record of earlier times.

    A text or thinking block begins with the first piece of it that is not white space, so that
    there is none that has nothing to say.
    """

    def __init__(
        self,
        parser: AnswerParser,
        stop_ids: tuple[int, ...],
        max_tokens: int,
        *,
        plan: AnswerPlan,
        message_id: str,
        sign: Sign,
    ) -> None:
        self.ids = ids_of()
        self.pieces: list[Piece] = []
        self.stop_reason: StopReason | None = None
        self.stop_sequence: str | None = None
        # Why there will be no answer, though the engine did its part.
        self.fault: ApiError | None = None
        # Whether it is over though the engine, which knows nothing of blocks, may go on.
        self.ended_early = False
        self._parser = parser
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._message_id = message_id
        self._sign = sign
        self._shows_thinking = plan.display != "omitted"
        self._parallel = plan.form.choice.parallel
        self._makes_notes = plan.form.thinking.kind == "between_tools"
        self._open: _Open | None = None
        self._held: list[str] = []  # the beginning of a block that may come to nothing
        self._thought: list[str] = []  # the open thinking block
        self._thoughts = self._calls = 0

    @property
    def is_over(self) -> bool:
        return self.stop_reason is not None or self.fault is not None

    @property
    def thinking_tokens(self) -> int:
        """Those of its ids that are thinking, delimiters included."""
        return self._parser.thinking_tokens

    def take(self, ids: Iterable[int]) -> tuple[list[int], list[Piece]]:
        """The ids that count, and the pieces that they let be shown. Those after the end of the
        answer, wherever that turns out to be, were decoded in vain."""
        taken: list[int] = []
        shown: list[Piece] = []
        for token in ids:
            if self.is_over:
                break
            taken.append(token)
            self.ids.append(token)
            if token in self._stop_ids:
                shown += self._end("end_turn")
                continue
            shown += self._read(self._parser.feed(token))
            self.ended_early = self.is_over
            if not self.is_over and len(self.ids) == self._max_tokens:
                shown += self._end("max_tokens")
        self.pieces += shown
        return taken, shown

    def cut(self) -> list[Piece]:
        """The engine has no room for more; the pieces that this lets be shown."""
        shown = [] if self.is_over else self._end("max_tokens")
        self.pieces += shown
        return shown

    def _end(self, reason: StopReason) -> list[Piece]:
        shown = list(self._read(self._parser.end(cut=reason == "max_tokens")))
        return shown if self.is_over else [*shown, *self._finish(reason)]

    def _read(self, found: Iterable[events.Event]) -> Iterator[Piece]:
        for event in found:
            if self.is_over:
                return
            match event:
                case events.TextDelta(text):
                    yield from self._text(text)
                case events.ThinkingDelta(text):
                    yield from self._thinking(text)
                case events.ThinkingEnd():
                    yield from self._close_thinking()
                case events.CallStart(name):
                    yield from self._start_call(name)
                case events.CallArguments(json):
                    yield CallArguments(json)
                case events.CallEnd():
                    self._open = None
                    self._calls += 1
                    yield CallEnd()
                    if not self._parallel:
                        yield from self._finish("tool_use")
                case events.InvalidCall(name, why):
                    self.fault = ApiError.internal(
                        f"the model called {name} in a way that cannot be published: {why}; "
                        "ask again, or have the service keep calls to their schemas"
                    )
                case events.Stopped(sequence):
                    yield from self._finish("stop_sequence", sequence)

    def _text(self, text: str) -> Iterator[Piece]:
        yield from self._close_thinking()
        self._held.append(text)
        if self._makes_notes or (self._open is None and text.isspace()):
            return  # what comes next tells what it is
        yield from self._said()

    def _said(self) -> Iterator[Piece]:
        """What was held back of a text, now that it is one."""
        text = "".join(self._held)
        self._held.clear()
        if text and (self._open is _Open.TEXT or not text.isspace()):
            self._open = _Open.TEXT
            yield TextPiece(text)

    def _thinking(self, text: str) -> Iterator[Piece]:
        if not self._thought:
            yield from self._said()
            self._open = None
        self._thought.append(text)
        if self._open is None:
            if text.isspace():
                return
            self._open, text = _Open.THINKING, "".join(self._thought)
            if not self._shows_thinking:
                yield ThinkingPiece("")
        if self._shows_thinking:
            yield ThinkingPiece(text)

    def _close_thinking(self) -> Iterator[Piece]:
        if self._open is _Open.THINKING:
            yield Signature(self._sign("".join(self._thought), self._thoughts))
            self._thoughts += 1
            self._open = None
        self._thought.clear()

    def _start_call(self, name: str) -> Iterator[Piece]:
        yield from self._close_thinking()
        if self._makes_notes and self._held:
            note = "".join(self._held)
            self._held.clear()
            yield from self._thinking(note)
            yield from self._close_thinking()
        self._held.clear()
        self._open = _Open.CALL
        yield CallStart(call_id(self._message_id, self._calls), name)

    def _finish(self, reason: StopReason, sequence: str | None = None) -> Iterator[Piece]:
        """However it ended: whoever gets a call has to run it, unless another was cut short."""
        yield from self._close_thinking()
        yield from self._said()
        if self._open is _Open.CALL and reason != "max_tokens":
            self.fault = ApiError.internal(
                "the model ended its answer in the middle of a call; ask again"
            )
        elif self._calls and self._open is not _Open.CALL:
            self.stop_reason = "tool_use"
        else:
            self.stop_reason, self.stop_sequence = reason, sequence

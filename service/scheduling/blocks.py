"""What a parser reads of an answer, as pieces of the blocks that a client gets."""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any

from models.conversation import ToolCall
from models.parsing.events import (
    CallArguments,
    CallEnd,
    CallStart,
    TextDelta,
    ThinkingDelta,
    ThinkingEnd,
)
from service.ids import call_id
from service.requests.answer_plan import AnswerPlan
from storage import answer_pieces as pieces
from storage.answer_pieces import Piece, Signature, TextPiece, ThinkingPiece
from storage.json_text import to_json

# A thinking text and its number among those of the message, from 0, to its signature. The same
# whenever it is asked, since an answer that is read again is to be the same.
Sign = Callable[[str, int], str]

BlockEvent = TextDelta | ThinkingDelta | ThinkingEnd | CallStart | CallArguments | CallEnd


# Makes the block that a summary is.
Summarise = Callable[[str], dict[str, Any]]


class _Open(Enum):
    TEXT = auto()
    THINKING = auto()
    CALL = auto()


class Blocks:
    """A text or thinking block begins with the first piece of it that is not white space, so that
    there is none that has nothing to say.

    Where thinking is not to be shown its blocks are empty. A call of a tool that the service runs
    is shown once it is complete: nobody else could do anything about one that was cut short.
    """

    def __init__(
        self, plan: AnswerPlan, message_id: str, sign: Sign, before: "Blocks | None" = None
    ) -> None:
        """With `before`, these go on after them in the same message."""
        self.client_calls = 0  # that are complete
        self.server_calls: list[ToolCall] = []
        self._calls = before._calls if before else 0  # that have begun, in the whole message
        self._message_id = message_id
        self._sign = sign
        self._shows_thinking = plan.display != "omitted"
        self._open: _Open | None = None
        self._blank: list[str] = []  # the beginning of a text that may come to nothing
        self._thought: list[str] = []  # the thinking so far, shown or not
        self._thoughts = before._thoughts if before else 0
        self._on_server = {each.name for each in plan.form.tools if each.on_server}
        self._held: pieces.CallStart | None = None  # of a call that the service runs

    @property
    def in_call(self) -> bool:
        return self._open is _Open.CALL

    def take(self, event: BlockEvent) -> Iterator[Piece]:
        match event:
            case TextDelta(text):
                yield from self._text(text)
            case ThinkingDelta(text):
                yield from self._thinking(text)
            case ThinkingEnd():
                yield from self._end_thinking()
            case CallStart(name):
                yield from self._start_call(name)
            case CallArguments(json) if self._held is None:
                yield pieces.CallArguments(json)
            case CallArguments():
                pass
            case CallEnd(arguments):
                yield from self._end_call(arguments)

    def end(self) -> Iterator[Piece]:
        """Nothing more comes; a call that is open stays so."""
        yield from self._end_thinking()

    def _text(self, text: str) -> Iterator[Piece]:
        yield from self._end_thinking()
        if self._open is None:
            self._blank.append(text)
            if text.isspace():
                return
            self._open, text = _Open.TEXT, "".join(self._blank)
            self._blank.clear()
        yield TextPiece(text)

    def _thinking(self, text: str) -> Iterator[Piece]:
        if self._open is _Open.TEXT:
            self._open = None
        self._blank.clear()
        self._thought.append(text)
        if self._open is None:
            if text.isspace():
                return
            self._open, text = _Open.THINKING, "".join(self._thought)
            if not self._shows_thinking:
                yield ThinkingPiece("")
        if self._shows_thinking:
            yield ThinkingPiece(text)

    def _end_thinking(self) -> Iterator[Piece]:
        if self._open is _Open.THINKING:
            self._open = None
            yield Signature(self._sign("".join(self._thought), self._thoughts))
            self._thoughts += 1
        self._thought.clear()

    def _start_call(self, name: str) -> Iterator[Piece]:
        yield from self._end_thinking()
        self._blank.clear()
        self._open = _Open.CALL
        on_server = name in self._on_server
        id = call_id(self._message_id, self._calls, "srvtoolu" if on_server else "toolu")
        self._calls += 1
        start = pieces.CallStart(id, name, on_server)
        if on_server:
            self._held = start
        else:
            yield start

    def _end_call(self, arguments: dict[str, Any]) -> Iterator[Piece]:
        self._open = None
        if self._held is None:
            self.client_calls += 1
        else:
            self.server_calls.append(ToolCall(self._held.id, self._held.name, arguments))
            yield self._held
            yield pieces.CallArguments(to_json(arguments).decode())
            self._held = None
        yield pieces.CallEnd()


class SummaryBlock:
    """The text of an answer as one block, once all of it is there; thinking is not shown."""

    client_calls, in_call = 0, False

    def __init__(self, summarise: Summarise) -> None:
        self.server_calls: list[ToolCall] = []
        self._summarise = summarise
        self._texts: list[str] = []

    def take(self, event: BlockEvent) -> Iterator[Piece]:
        if isinstance(event, TextDelta):
            self._texts.append(event.text)
        yield from ()

    def end(self) -> Iterator[Piece]:
        yield pieces.WholeBlock(self._summarise("".join(self._texts).strip()))

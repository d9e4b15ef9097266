"""The turns of a conversation as Gemma 4 reads them, in pieces of a prompt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from models.conversation import Text, Thinking, ToolCall, ToolResult, Turn
from models.families.gemma4_answer import CALL, CALL_END, CHANNEL, CHANNEL_END, THOUGHT
from models.families.own_tokens import OwnTokens
from models.families.prompt_tokens import Piece
from models.parsing.gemma_call import QUOTE

TURN, TURN_END = "<|turn>", "<turn|>"
RESPONSE, RESPONSE_END = "<|tool_response>", "<tool_response|>"

Pieces = Iterable[Piece]


class Gemma4Turns:
    """Writes turns to its `pieces`, the markers by their `ids`.

    Texts are stripped and arguments sorted as in the models' own templates; unlike there, text
    that was written before a call stays before it. Results stand in the model's turn, which goes
    on after them. Thinking is shown to the turn that it belongs to, and not to later ones; but what
    the model wrote here stays as it was, so that the prompt of a conversation begins the next one.
    """

    def __init__(self, ids: Mapping[str, int], own: OwnTokens) -> None:
        self._ids = ids
        self._own = own
        self.pieces: list[Piece] = []
        self.goes_on = False  # the model's turn: what comes next is a part of it

    def write(self, turns: Sequence[Turn], *, prefills: bool = False) -> None:
        """If it `prefills`, the last turn has no end."""
        asked = [place for place, each in enumerate(turns) if each.role == "user" and each.text]
        for place, turn in enumerate(turns):
            if turn.role == "assistant":
                if own := self._own.of(turn):
                    self._again(own)
                else:
                    self._open()
                    self._answer(turn, thinks=not asked or place > asked[-1])
                calls = bool(turn.blocks) and isinstance(turn.blocks[-1], ToolCall)
                if not calls and not (prefills and place == len(turns) - 1):
                    self._close()
                continue
            for each in turn.blocks:
                if isinstance(each, ToolResult):
                    self._open()
                    self._result(each)
            if turn.text:
                self._close()
                self._mark(TURN, f"{turn.role}\n{turn.text.strip()}")
                self._mark(TURN_END, "\n")

    def _open(self) -> None:
        if not self.goes_on:
            self._mark(TURN, "model\n")
        self.goes_on = True

    def _close(self) -> None:
        if self.goes_on:
            self._mark(TURN_END, "\n")
        self.goes_on = False

    def _again(self, own: tuple[int, ...]) -> None:
        if own[:1] == (self._ids[TURN],):
            self._close()
        else:
            self._open()
        self.pieces.append(own)
        self.goes_on = True

    def _answer(self, turn: Turn, *, thinks: bool) -> None:
        for each in turn.blocks:
            match each:
                case Text(text):
                    self.pieces.append(text.strip())
                case Thinking(text):
                    if thinks:
                        self._mark(CHANNEL, f"{THOUGHT}{text}\n")
                        self._mark(CHANNEL_END)
                case ToolCall():
                    self._mark(CALL, f"call:{each.name}")
                    self.pieces += self._value(each.arguments)
                    self._mark(CALL_END)
                case ToolResult():
                    raise ValueError("a result in an assistant's turn")

    def _result(self, result: ToolResult) -> None:
        self._mark(RESPONSE, f"response:{result.name}")
        self.pieces += self._value({"error" if result.is_error else "value": result.text})
        self._mark(RESPONSE_END)

    def _value(self, value: Any) -> Iterator[Piece]:
        match value:
            case str():
                yield from (self._ids[QUOTE], value, self._ids[QUOTE])
            case dict():
                fields = cast(dict[str, Any], value)
                pairs = [
                    (f"{key}:", *self._value(fields[key])) for key in sorted(fields, key=str.lower)
                ]
                yield from ("{", *_joined(pairs), "}")
            case list():
                items = [self._value(each) for each in cast(list[Any], value)]
                yield from ("[", *_joined(items), "]")
            case None:
                yield "null"
            case bool():
                yield "true" if value else "false"
            case _:
                yield str(value)

    def _mark(self, marker: str, text: str = "") -> None:
        self.pieces += (self._ids[marker], text)


def _joined(groups: Sequence[Pieces]) -> Iterator[Piece]:
    for place, each in enumerate(groups):
        if place:
            yield ","
        yield from each

"""Turns as Qwen's checkpoints write them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.conversation import Block, Text, Thinking, ToolCall, ToolResult, Turn
from models.families.chatml import ChatML, Pieces
from models.families.own_tokens import OwnTokens
from models.families.prompt_tokens import Piece
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END, Dialect


class QwenTurns:
    """Every turn is written the same wherever it stands, so that the prompt of a conversation
    begins those of all that go on from it: thinking is kept in all turns. (Templates drop it from
    those before the last question, unless they are asked to preserve it.)

    System turns stay where they are, but for one between calls and their results, which comes
    after these.
    """

    def __init__(
        self, chatml: ChatML, dialect: Dialect, ids: Mapping[str, int], own: OwnTokens
    ) -> None:
        self._chatml = chatml
        self._dialect = dialect
        self._ids = ids
        self._own = own

    def pieces(self, turns: Sequence[Turn]) -> Iterator[Piece]:
        for turn in _in_order(turns):
            match turn.role:
                case "assistant":
                    if own := self._own.of(turn):
                        yield from self._chatml.ended(own)
                    else:
                        yield from self._chatml.turn("assistant", *self._answer(turn))
                case "user":
                    yield from self._user(turn)
                case "system":
                    yield from self._chatml.turn("system", self._text(turn.text))

    def answer(self, prefill: Turn | None, *, thinks: bool) -> Pieces:
        """The beginning of the answer; one that has begun thinks no more."""
        if prefill is None or not prefill.blocks:
            opens = self._dialect.opens[0 if thinks else 1]
            return self._chatml.beginning("assistant", *opens)
        has_thought = isinstance(prefill.blocks[0], Thinking)
        opens = () if has_thought else self._dialect.opens[1]
        last = prefill.blocks[-1]
        # That at its end is the beginning of what comes.
        space = last.text[len(last.text.rstrip()) :] if isinstance(last, Text) else ""
        stripped = [space] if self._dialect.strips else []
        written = self._blocks(prefill.blocks)
        return self._chatml.beginning("assistant", *opens, *written, *stripped)

    def _user(self, turn: Turn) -> Iterator[Piece]:
        results = [each for each in turn.blocks if isinstance(each, ToolResult)]
        if results:
            dialect = self._dialect
            pieces = [*dialect.result_start, self._result(results[0])]
            for each in results[1:]:
                pieces += (*dialect.result_between, self._result(each))
            yield from (self._chatml.start, "user", *pieces, *dialect.result_end)
            yield from (self._chatml.end, "\n")
        if turn.text or not results:
            yield from self._chatml.turn("user", self._text(turn.text))

    def _answer(self, turn: Turn) -> Iterator[Piece]:
        if self._dialect.marks_no_thinking and not any(
            isinstance(each, Thinking) for each in turn.blocks[:1]
        ):
            yield from self._dialect.opens[1]
        yield from self._blocks(turn.blocks)

    def _blocks(self, blocks: Sequence[Block]) -> Iterator[Piece]:
        before: Block | None = None
        for block, after in zip(blocks, (*blocks[1:], None), strict=False):
            if isinstance(before, ToolCall) and not isinstance(block, ToolCall):
                yield "\n"
            match block:
                case Thinking(text):
                    yield from self._thinking(text)
                case Text(text) if isinstance(after, ToolCall):
                    # White space there is the model's way to the call, of which it has its own.
                    text = self._text(text).rstrip()
                    yield text + self._dialect.text_end if text else ""
                case Text(text):
                    yield self._text(text)
                case ToolCall():
                    if isinstance(before, ToolCall):
                        yield "\n"
                    yield from (self._ids[CALL], self._call(block), self._ids[CALL_END])
                case ToolResult():
                    raise AssertionError("results stand in user turns")
            before = block

    def _thinking(self, text: str) -> Iterator[Piece]:
        if self._dialect.thinks:
            yield from (self._ids[THINK], f"\n{text.strip()}\n", self._ids[THINK_END], "\n\n")

    def _result(self, result: ToolResult) -> str:
        return self._text(f"Error: {result.text}" if result.is_error else result.text)

    def _text(self, text: str) -> str:
        return text.strip() if self._dialect.strips else text

    def _call(self, call: ToolCall) -> str:
        if self._dialect.calls == "json":
            return f'\n{{"name": {_json(call.name)}, "arguments": {_json(call.arguments)}}}\n'
        values = "".join(
            f"<parameter={name}>\n{self._value(value)}\n</parameter>\n"
            for name, value in call.arguments.items()
        )
        return f"\n<function={call.name}>\n{values}</function>\n"

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if self._dialect.as_python and not isinstance(value, (dict, list)):
            return str(value)
        return _json(value)


# Kept, since making one takes longer than most calls.
_json = json.JSONEncoder(ensure_ascii=False).encode


def _in_order(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns with the results right after their calls."""
    kept: list[Turn] = []  # system turns that came between
    called = False
    for turn in turns:
        if called and turn.role == "system":
            kept.append(turn)
            continue
        results = tuple(each for each in turn.blocks if isinstance(each, ToolResult))
        if kept and results:
            yield Turn("user", results)
            yield from kept
            if turn.text:
                yield Turn.of("user", turn.text)
        else:
            yield from (*kept, turn)
        kept = []
        called = any(isinstance(each, ToolCall) for each in turn.blocks)
    yield from kept

"""An answer as it streamed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from storage.answer_pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Signature,
    TextPiece,
    ThinkingPiece,
    WholeBlock,
    pieces_in,
)
from storage.json_text import to_json


def piece(event: dict[str, Any]) -> str:
    """What streamed with an event: text as it is, thinking and calls with what tells them from
    it; where the record keeps no content, a dot stands for each character."""
    if event["event"] not in ("tokens", "results"):
        return ""
    if "chars" in event:
        return "·" * event["chars"]
    return "".join(map(_written, pieces_in(event)))


def pieces(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    """The streamed texts, each with the seconds from the run's arrival to it."""
    for event in events:
        if text := piece(event):
            yield event["at"] - events[0]["at"], text


def streamed_text(events: Sequence[dict[str, Any]]) -> str:
    return "".join(text for _, text in pieces(events))


def replay(
    events: Sequence[dict[str, Any]],
    show: Callable[[str], None],
    wait_until: Callable[[float], None] | None,
) -> None:
    """Give each piece to `show`, after `wait_until` its seconds since the arrival."""
    for seconds, text in pieces(events):
        if wait_until is not None:
            wait_until(seconds)
        show(text)


def _written(piece: Piece) -> str:
    match piece:
        case TextPiece(text) | ThinkingPiece(text) | CallArguments(text):
            return text
        case Signature():
            return "\n[end of thinking]\n"
        case CallStart(name=name):
            return f"\n[call of {name}] "
        case CallEnd():
            return "\n"
        case WholeBlock(block):
            return f"[{to_json(block).decode()}]\n"

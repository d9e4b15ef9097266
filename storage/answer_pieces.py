"""The pieces in which an answer is shown: as they stream, and as a record's events keep them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from storage.json_text import from_json, to_json


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of a text block, which begins with it if none was open."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingPiece:
    """As with text. Where the client is not to see what was thought, it is empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Signature:
    """The end of a thinking block."""

    signature: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Of a tool that the client runs, or of one that the service runs itself (`on_server`)."""

    id: str
    name: str
    on_server: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON object of the open call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call that was cut short has none."""


@dataclass(frozen=True, slots=True)
class WholeBlock:
    """A block that comes complete, as the Messages API has it."""

    block: dict[str, Any]


_Growing = TextPiece | ThinkingPiece | CallArguments
Piece = _Growing | Signature | CallStart | CallEnd | WholeBlock


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same in as few pieces as it takes."""
    for _, neighbours in groupby(pieces, type):
        first, *others = neighbours
        if isinstance(first, _Growing):
            texts = (each.text for each in (first, *others) if isinstance(each, _Growing))
            yield replace(first, text="".join(texts))
        else:
            yield from (first, *others)


def as_details(pieces: Iterable[Piece]) -> dict[str, Any]:
    """What a record's event keeps of pieces, most of which are of text only."""
    match list(joined(pieces)):
        case []:
            return {"text": ""}
        case [TextPiece(text)]:
            return {"text": text}
        case shown:
            return {"shown": [_as_json(each) for each in shown]}


def pieces_in(event: dict[str, Any]) -> list[Piece]:
    """Those of an event of any kind; none where the record keeps no content."""
    if event.get("text"):
        return [TextPiece(event["text"])]
    return [_from_json(each) for each in event.get("shown", ())]


def characters(pieces: Iterable[Piece]) -> int:
    """How much was said and thought."""
    return sum(len(each.text) for each in pieces if isinstance(each, TextPiece | ThinkingPiece))


def content_of(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """The blocks that pieces make, as the Messages API has them; without a call cut short."""
    return [block for each in _by_block(joined(pieces)) if (block := _block(each)) is not None]


def pieces_of(content: Iterable[dict[str, Any]]) -> Iterator[Piece]:
    """Those that make these blocks."""
    for block in content:
        match block["type"]:
            case "text":
                yield TextPiece(block["text"])
            case "thinking":
                yield ThinkingPiece(block["thinking"])
                yield Signature(block["signature"])
            case "tool_use" | "server_tool_use":
                yield CallStart(block["id"], block["name"], block["type"] == "server_tool_use")
                yield CallArguments(to_json(block["input"]).decode())
                yield CallEnd()
            case _:
                yield WholeBlock(block)


def _by_block(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    block: list[Piece] = []
    for piece in pieces:
        if block and _begins(piece, block[-1]):
            yield block
            block = []
        block.append(piece)
    if block:
        yield block


def _begins(piece: Piece, before: Piece) -> bool:
    if isinstance(piece, TextPiece | ThinkingPiece):
        return type(piece) is not type(before)
    return isinstance(piece, CallStart | WholeBlock)


def _block(pieces: Sequence[Piece]) -> dict[str, Any] | None:
    first, last = pieces[0], pieces[-1]
    text = "".join(each.text for each in pieces if isinstance(each, _Growing))
    if isinstance(first, TextPiece):
        return {"type": "text", "text": text}
    if isinstance(first, ThinkingPiece):
        signature = last.signature if isinstance(last, Signature) else ""
        return {"type": "thinking", "thinking": text, "signature": signature}
    if isinstance(first, WholeBlock):
        return first.block
    if not isinstance(first, CallStart):
        raise LookupError(f"no beginning of a block: {first}")
    if not isinstance(last, CallEnd):
        return None
    arguments = text or "{}"
    return {
        "type": "server_tool_use" if first.on_server else "tool_use",
        "id": first.id,
        "name": first.name,
        "input": from_json(arguments.encode()),
    }


def _as_json(piece: Piece) -> dict[str, Any]:
    match piece:
        case TextPiece(text):
            return {"text": text}
        case ThinkingPiece(text):
            return {"thinking": text}
        case Signature(signature):
            return {"signature": signature}
        case CallStart(id, name, on_server):
            kind = "server_tool_use" if on_server else "tool_use"
            return {kind: {"id": id, "name": name}}
        case CallArguments(text):
            return {"input_json": text}
        case CallEnd():
            return {"tool_use_end": True}
        case WholeBlock(block):
            return {"block": block}


def _from_json(value: dict[str, Any]) -> Piece:
    match value:
        case {"text": text}:
            return TextPiece(text)
        case {"thinking": text}:
            return ThinkingPiece(text)
        case {"signature": signature}:
            return Signature(signature)
        case {"tool_use": {"id": id, "name": name}}:
            return CallStart(id, name)
        case {"server_tool_use": {"id": id, "name": name}}:
            return CallStart(id, name, on_server=True)
        case {"input_json": text}:
            return CallArguments(text)
        case {"tool_use_end": True}:
            return CallEnd()
        case {"block": block}:
            return WholeBlock(block)
        case _:
            raise LookupError(f"no piece of an answer: {value!r}")

"""The pieces of an answer as events of its stream."""

from collections.abc import Iterable, Iterator

from service.wire import events
from service.wire.responses import Block
from storage.answer_pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Signature,
    TextPiece,
    ThinkingPiece,
    WholeBlock,
    joined,
)

# Clients parse all that is there of a call's arguments again at each delta.
_LEAST_ARGUMENTS = 16


class BlockEvents:
    """One block is open at a time; their indices count from 0, in the order in which they begin.

    Pieces that come together are joined: whoever fell behind gets what was missed at once. Those
    of a call's arguments wait for each other until they are 16 characters, or its end.
    """

    def __init__(self) -> None:
        self._index = -1
        self._open: type[Piece] | None = None  # what its first piece is
        self._arguments = ""  # that wait

    def of(self, pieces: Iterable[Piece]) -> Iterator[events.Event]:
        for piece in joined(pieces):
            match piece:
                case TextPiece(text):
                    yield from self._begin(TextPiece, {"type": "text", "text": ""})
                    yield self._delta("text_delta", text=text)
                case ThinkingPiece(text):
                    empty: Block = {"type": "thinking", "thinking": "", "signature": ""}
                    yield from self._begin(ThinkingPiece, empty)
                    if text:
                        yield self._delta("thinking_delta", thinking=text)
                case Signature(signature):
                    yield self._delta("signature_delta", signature=signature)
                    yield from self.end()
                case CallStart(id, name, on_server):
                    kind = "server_tool_use" if on_server else "tool_use"
                    empty = {"type": kind, "id": id, "name": name, "input": {}}
                    yield from self._begin(CallStart, empty)
                case CallArguments(text):
                    self._arguments += text
                    if len(self._arguments) >= _LEAST_ARGUMENTS:
                        yield from self._end_arguments()
                case CallEnd():
                    yield from self.end()
                case WholeBlock({"type": "compaction", "content": content} as block):
                    # By contract it comes in one delta; the rest of the block at its beginning.
                    yield from self._begin(WholeBlock, {**block, "content": None})
                    yield self._delta("compaction_delta", content=content)
                    yield from self.end()
                case WholeBlock(block):
                    yield from self._begin(WholeBlock, block)
                    yield from self.end()

    def end(self) -> Iterator[events.Event]:
        """Of the block that is open, if one is: a call that was cut short ends like that, too."""
        yield from self._end_arguments()
        if self._open is not None:
            self._open = None
            yield events.content_block_stop(self._index)

    def _begin(self, kind: type[Piece], empty: Block) -> Iterator[events.Event]:
        if self._open is kind:
            return
        yield from self.end()
        self._open = kind
        self._index += 1
        yield events.content_block_start(self._index, empty)

    def _end_arguments(self) -> Iterator[events.Event]:
        if self._arguments:
            yield self._delta("input_json_delta", partial_json=self._arguments)
            self._arguments = ""

    def _delta(self, kind: str, **more: str | None) -> events.Event:
        return events.content_block_delta(self._index, kind, **more)

"""The tokens of answers that were given here, for the prompts that have these answers in them."""

import logging
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, cast

import orjson
from anyio import to_thread

from models.catalog import Checkpoint
from models.conversation import Block, Conversation, Text, Thinking, ToolCall, Turn
from service.requests.found_tools import definitions_of
from service.requests.history import History
from service.requests.served import Served
from service.scheduling.rounds import Round
from storage.answer_pieces import content_of
from storage.answers import KeptAnswer, kept_answers
from storage.database import Database
from storage.errors import StorageError
from storage.json_text import to_json

logger = logging.getLogger("mererun.answers")

_REMEMBERED_BYTES = 16 << 20  # four million tokens
_ENTRY_BYTES = 300  # what one takes beside its ids
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Recalled:
    """A conversation whose answers have their tokens, where they are known; and its digest."""

    conversation: Conversation
    digest: bytes


class Answers:
    """Known by a digest of all that was said up to the answer's end, as the model was told of it.

    So an answer has its tokens only where nothing was changed, in it or before it, and two answers
    of the same words in different places are two. Each API key has its own.
    """

    def __init__(
        self, db: Database, served: Served, checkpoint: Checkpoint, *, content: bool
    ) -> None:
        """With `content` they are kept with their runs; else for as long as the service runs, and
        has room. Reads the tokenizer's file."""
        self._db = db
        self._served = served
        self._origin = _origin(checkpoint)
        self._content = content
        self._memory = _Memory(_REMEMBERED_BYTES)

    async def recalled(self, conversation: Conversation, scope: str) -> Recalled:
        """`scope` is the id of the API key, empty for none."""
        digests = await to_thread.run_sync(self._digests, conversation.turns)
        ids = await self._found(_answers_in(conversation, digests), scope)
        turns = (
            replace(turn, tokens=_unpacked(ids[digest])) if digest in ids else turn
            for turn, digest in zip(conversation.turns, digests, strict=True)
        )
        return Recalled(replace(conversation, turns=tuple(turns)), digests[-1])

    async def remember(self, rounds: Sequence[Round]) -> list[KeptAnswer]:
        """From now on, what was said in each round has its tokens; what is to be kept of that with
        the run.

        Nothing of a round that the model itself did not end, or not all of which was shown.
        """
        answered = [each for each in rounds if _is_whole(each)]
        if not answered:
            return []
        kept = await to_thread.run_sync(self._kept, rounds)
        for each in kept:
            self._memory.keep((rounds[0].run.scope, each.digest), each.ids)
        return kept if self._content else []

    def _kept(self, rounds: Sequence[Round]) -> list[KeptAnswer]:
        plan = rounds[0].answer.plan
        content = content_of(piece for each in rounds for piece in each.answer.pieces)
        turns = History.answered(content, self._served, definitions_of(plan.findable))
        digest, kept = bytes.fromhex(plan.asked), list[KeptAnswer]()
        left = iter(rounds)
        for turn in turns:
            digest = _next_digest(digest, turn)
            if turn.role != "assistant":
                continue
            its = next(left)
            if _is_whole(its):
                turn_from = its.answer.plan.answer_from
                ids = (*its.run.prompt[turn_from:], *its.answer.ids)
                kept.append(KeptAnswer(digest, _packed(ids)))
        return kept

    def _digests(self, turns: Sequence[Turn]) -> list[bytes]:
        """Of all that was said up to the end of each turn."""
        digests = [self._origin]
        for each in turns:
            digests.append(_next_digest(digests[-1], each))
        return digests[1:]

    async def _found(self, digests: Sequence[bytes], scope: str) -> dict[bytes, bytes]:
        found = {each: self._memory.find((scope, each)) for each in digests}
        missing = [each for each, ids in found.items() if ids is None]
        kept: list[KeptAnswer] = []
        if missing:
            try:
                kept = await kept_answers(self._db, scope, missing)
            except StorageError as error:  # then they are written from what the client sent
                logger.error("%s", error)
        for each in kept:
            self._memory.keep((scope, each.digest), each.ids)
            found[each.digest] = each.ids
        return {each: ids for each, ids in found.items() if ids is not None}


class _Memory:
    """Those used last, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def find(self, key: tuple[str, bytes]) -> bytes | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: tuple[str, bytes], ids: bytes) -> None:
        self._bytes += len(ids) + _ENTRY_BYTES
        if (before := self._kept.pop(key, None)) is not None:
            self._bytes -= len(before) + _ENTRY_BYTES
        self._kept[key] = ids
        while self._bytes > self._most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped) + _ENTRY_BYTES


def _is_whole(said: Round) -> bool:
    return said.answer.ended_itself and said.answer.plan.answer_from is not None


def _origin(checkpoint: Checkpoint) -> bytes:
    """What the meaning of tokens depends on, and whose answers these are."""
    parts = [checkpoint.id, checkpoint.weights_sha256 or ""]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        file = checkpoint.path / name
        parts.append(blake2b(file.read_bytes()).hexdigest() if file.exists() else "")
    return blake2b(orjson.dumps(parts), digest_size=_DIGEST_BYTES).digest()


def _answers_in(conversation: Conversation, digests: Sequence[bytes]) -> list[bytes]:
    """The digests of its answers, of which a prefill is none."""
    turns = conversation.turns[: -1 if conversation.prefills else None]
    return [
        digest for turn, digest in zip(turns, digests, strict=False) if turn.role == "assistant"
    ]


def _next_digest(before: bytes, turn: Turn) -> bytes:
    said = to_json([turn.role, [list(_said(each)) for each in turn.blocks]])
    return blake2b(before + said, digest_size=_DIGEST_BYTES).digest()


def _said(block: Block) -> Iterator[Any]:
    """All that the model is told of it, however it was spelled."""
    match block:
        case Text(text):
            yield from ("text", text)
        case Thinking(text):
            yield from ("thinking", text)
        case ToolCall():
            yield from ("call", block.id, block.name, _unspelled(block.arguments))
        case _:
            yield from ("result", block.call_id, block.text, block.is_error)


def _unspelled(value: Any) -> Any:
    """JSON without the order of its keys, and with whole numbers as such: not all programs tell
    1.0 from 1."""
    match value:
        case dict():
            fields = cast(dict[str, Any], value)
            return {key: _unspelled(fields[key]) for key in sorted(fields)}
        case list():
            return [_unspelled(each) for each in cast(list[Any], value)]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def _packed(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def _unpacked(ids: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(ids) // 4}I", ids)

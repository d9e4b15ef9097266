"""Summaries in the place of conversations: `compaction` blocks, made and read again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self, cast

from service.errors import ApiError
from service.signatures import Signer
from service.wire.blocks import CompactionBlock
from service.wire.requests import BaseRequest, SystemMessage
from storage.json_text import to_json

# Always the same: prompts that begin with one summary begin alike.
_BEFORE = "Of this conversation so far, only this summary is left:\n\n<summary>\n"
_AFTER = "\n</summary>\n\nGo on from there."
_NOTHING = SystemMessage(role="system")


def as_told(summary: str) -> str:
    """What the model is told instead of all that was said before."""
    return f"{_BEFORE}{summary}{_AFTER}"


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """What a block has beside the summary: how tools were changed in what it stands for.

    With `in_place` it begins an answer, wherever that is in the messages, and all before it is out
    of use; without, it is to be the first block of the messages.
    """

    tool_changes: tuple[dict[str, Any], ...] = ()
    in_place: bool = False

    def block(self, summary: str, signer: Signer) -> dict[str, Any]:
        """Where the model wrote nothing, one without content, which stands for nothing."""
        if not summary:
            return {"type": "compaction", "content": None}
        claims = [_digest(summary), _digest(self.tool_changes), self.in_place]
        return {
            "type": "compaction",
            "content": summary,
            "signature": signer.seal(to_json(claims)),
            "tool_changes": list(self.tool_changes),
        }

    def as_json(self) -> dict[str, Any]:
        return {"tool_changes": list(self.tool_changes), "in_place": self.in_place}

    @classmethod
    def recalled(cls, recorded: Mapping[str, Any]) -> Self:
        """Raises LookupError for what is none."""
        return cls(tuple(recorded["tool_changes"]), recorded["in_place"])


def after_summary(request: BaseRequest, signer: Signer) -> BaseRequest:
    """The request without what its summary stands for; all that is left keeps its place.

    Raises ApiError 400, with the code of the contract, for a summary that is not as it was made
    here or stands in a wrong place, and for more than one.
    """
    found = [
        (index, place, _is_in_place(block, f"messages.{index}.content.{place}", signer))
        for index, message in enumerate(request.messages)
        if not isinstance(message.content, str)
        for place, block in enumerate(message.content or ())
        if isinstance(block, CompactionBlock) and block.content is not None
    ]
    if not found:
        return request
    first = max((index for index, _, in_place in found if in_place), default=0)
    (index, place, _), *others = [each for each in found if each[0] >= first]
    if others:
        raise ApiError.invalid(
            f"messages.{others[0][0]}.content.{others[0][1]}: there is a compaction block before it"
            f" already (messages.{index}.content.{place}); send only the one that came last",
            "compaction_block_ambiguous",
        )
    if (index, place) != (first, 0) or request.messages[index].role == "system":
        raise ApiError.invalid(
            f"messages.{index}.content.{place}: a compaction block must be the first block of the"
            " conversation; leave out what stands before it",
            "compaction_block_misplaced",
        )
    left = [_NOTHING] * first + list(request.messages[first:])
    return request.model_copy(update={"messages": left})


def _is_in_place(block: CompactionBlock, path: str, signer: Signer) -> bool:
    claims = signer.unsealed(block.signature or "")
    if claims is None:
        raise ApiError.invalid(
            f"{path}.signature: it is none of this server's; send the block as it came from here,"
            " or what it says as a text of the user's",
            "compaction_signature_invalid",
        )
    summary, changes, in_place = json.loads(claims)
    if summary != _digest(block.content):
        raise ApiError.invalid(
            f"{path}.content: it is not what was signed; send the block back unchanged",
            "compaction_content_mismatch",
        )
    sent = [each.as_sent() for each in block.tool_changes or ()]
    if changes != _digest(sent):
        raise ApiError.invalid(
            f"{path}.tool_changes: they are not what was signed; send the block back unchanged",
            "compaction_tool_changes_mismatch",
        )
    return in_place


def _digest(value: Any) -> str:
    text = json.dumps(_unspelled(value), sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _unspelled(value: Any) -> Any:
    """JSON as it may come back: without nulls, and with whole numbers as such, since not all
    programs tell them apart."""
    match value:
        case dict():
            fields = cast(dict[str, Any], value)
            return {key: _unspelled(each) for key, each in fields.items() if each is not None}
        case list() | tuple():
            return [_unspelled(each) for each in cast(Sequence[Any], value)]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value

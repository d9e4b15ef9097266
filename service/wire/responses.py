"""Bodies that the service answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from models.boundary import Boundary

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "compaction",
    "refusal",
    "model_context_window_exceeded",
]
Block = dict[str, Any]
MissKind = Literal[
    "model_changed",
    "system_changed",
    "tools_changed",
    "messages_changed",
    "previous_message_not_found",
    "unavailable",
]
EditKind = Literal["clear_tool_uses_20250919", "clear_thinking_20251015"]
_CLEARED: dict[EditKind, str] = {
    "clear_tool_uses_20250919": "cleared_tool_uses",
    "clear_thinking_20251015": "cleared_thinking_turns",
}
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class PromptUsage:
    """How a prompt's tokens are told to clients: the four counts add up to the whole prompt."""

    input_tokens: int
    cache_read: int = 0
    cache_creation_5m: int = 0
    cache_creation_1h: int = 0

    @classmethod
    def of(cls, tokens: int, boundaries: Sequence[Boundary], read: int, kept: int) -> Self:
        """Of a prompt of so many `tokens`, the first `read` of which the cache had and the first
        `kept` of which it has now. Each new token counts for the first of the ascending
        `boundaries` that it lies before."""
        created = {True: 0, False: 0}  # by whether it is for an hour
        done = read
        for each in boundaries:
            end = min(each.tokens, kept)
            created[each.ttl_seconds >= _HOUR_SECONDS] += max(0, end - done)
            done = max(done, end)
        return cls(tokens - done, read, created[False], created[True])

    @property
    def total(self) -> int:
        return self.input_tokens + self.cache_read + self.cache_creation

    @property
    def cache_creation(self) -> int:
        return self.cache_creation_5m + self.cache_creation_1h


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; thinking is part of the output."""

    prompt: PromptUsage
    output_tokens: int
    thinking_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            **self.totals_as_json(),
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.prompt.cache_creation_5m,
                "ephemeral_1h_input_tokens": self.prompt.cache_creation_1h,
            },
            "service_tier": "standard",
        }

    def totals_as_json(self) -> dict[str, Any]:
        """The fields that `message_delta` may carry."""
        return {
            "input_tokens": self.prompt.input_tokens,
            "cache_creation_input_tokens": self.prompt.cache_creation,
            "cache_read_input_tokens": self.prompt.cache_read,
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"thinking_tokens": self.thinking_tokens},
        }


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why the prompt cache could not serve a prompt as far as the earlier one that was named, and
    how many tokens of that are missed; None where nothing could be compared."""

    kind: MissKind
    missed_tokens: int | None = None

    def as_json(self) -> dict[str, Any]:
        missed = self.missed_tokens
        more = {} if missed is None else {"cache_missed_input_tokens": missed}
        return {"type": self.kind, **more}

    @classmethod
    def recalled(cls, json: dict[str, Any] | None) -> Self | None:
        return cls(json["type"], json.get("cache_missed_input_tokens")) if json else None


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """What an edit of a request's context cleared: so many uses of tools or turns with thinking,
    and so many tokens of the prompt."""

    kind: EditKind
    cleared: int
    cleared_input_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            _CLEARED[self.kind]: self.cleared,
            "cleared_input_tokens": self.cleared_input_tokens,
        }

    @classmethod
    def recalled(cls, json: dict[str, Any]) -> Self:
        """Raises LookupError for what is none."""
        kind: EditKind = json["type"]
        return cls(kind, json[_CLEARED[kind]], json["cleared_input_tokens"])


def context_management(edits: Sequence[AppliedEdit] | None) -> dict[str, Any]:
    """The field that tells of edits, where the request asked for any."""
    if edits is None:
        return {}
    return {"context_management": {"applied_edits": [each.as_json() for each in edits]}}


@dataclass(frozen=True, slots=True)
class Message:
    """An answer, its blocks as JSON. `stop_reason` is None in `message_start`, before anything is
    written, and in the records of answers that were cut short. Without a `cache_miss` none was
    found, or asked for; without `edits` none were asked for."""

    id: str
    model: str
    content: Sequence[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    cache_miss: CacheMiss | None = None
    edits: Sequence[AppliedEdit] | None = None

    def as_json(self) -> dict[str, Any]:
        miss = self.cache_miss
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(self.content),
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "stop_details": None,
            "usage": self.usage.as_json(),
            "diagnostics": {"cache_miss_reason": miss.as_json()} if miss else None,
            **context_management(self.edits),
        }

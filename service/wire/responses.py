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

    def plus(self, other: "PromptUsage") -> "PromptUsage":
        return PromptUsage(
            self.input_tokens + other.input_tokens,
            self.cache_read + other.cache_read,
            self.cache_creation_5m + other.cache_creation_5m,
            self.cache_creation_1h + other.cache_creation_1h,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": self.cache_creation,
            "cache_read_input_tokens": self.cache_read,
        }

    def creation_as_json(self) -> dict[str, Any]:
        return {
            "ephemeral_5m_input_tokens": self.cache_creation_5m,
            "ephemeral_1h_input_tokens": self.cache_creation_1h,
        }

    @classmethod
    def recalled(cls, json: dict[str, Any]) -> Self:
        """Raises LookupError for what is none."""
        created = json["cache_creation"]
        return cls(
            json["input_tokens"],
            json["cache_read_input_tokens"],
            created["ephemeral_5m_input_tokens"],
            created["ephemeral_1h_input_tokens"],
        )


IterationKind = Literal["message", "compaction"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """Tokens of one round of a request: of its whole prompt, and of what was generated for it."""

    prompt: PromptUsage
    output_tokens: int
    thinking_tokens: int = 0
    kind: IterationKind = "message"

    @property
    def prompt_at_start(self) -> PromptUsage:
        """What is told of it where an answer begins with it. That of a summary is not in the sums,
        but clients take a prompt of no tokens for a fault."""
        return self.prompt if self.kind == "message" else PromptUsage(self.prompt.total)

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            **self.prompt.as_json(),
            "output_tokens": self.output_tokens,
            "cache_creation": self.prompt.creation_as_json(),
        }

    @classmethod
    def recalled(cls, json: dict[str, Any]) -> Self:
        """But for the thinking, of which only the sum is told. Raises LookupError."""
        return cls(PromptUsage.recalled(json), json["output_tokens"], kind=json["type"])


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; thinking is part of the output. `iterations` are its rounds, if there
    was more than one."""

    prompt: PromptUsage
    output_tokens: int
    thinking_tokens: int = 0
    iterations: tuple[Iteration, ...] = ()

    @classmethod
    def of(cls, rounds: Sequence[Iteration]) -> Self:
        """The sum of all that are messages: what a summary takes counts for itself."""
        if len(rounds) == 1 and rounds[0].kind == "message":
            only = rounds[0]
            return cls(only.prompt, only.output_tokens, only.thinking_tokens)
        counted = [each for each in rounds if each.kind == "message"]
        prompt = PromptUsage(0)
        for each in counted:
            prompt = prompt.plus(each.prompt)
        return cls(
            prompt,
            sum(each.output_tokens for each in counted),
            sum(each.thinking_tokens for each in counted),
            tuple(rounds),
        )

    @classmethod
    def recalled(cls, json: dict[str, Any]) -> Self:
        """Raises LookupError for what is none."""
        # Records of earlier versions have no details: their answers have no thinking.
        details = json.get("output_tokens_details", {"thinking_tokens": 0})
        return cls(
            PromptUsage.recalled(json),
            json["output_tokens"],
            details["thinking_tokens"],
            tuple(Iteration.recalled(each) for each in json.get("iterations", ())),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **self.totals_as_json(),
            "cache_creation": self.prompt.creation_as_json(),
            "service_tier": "standard",
        }

    def totals_as_json(self) -> dict[str, Any]:
        """The fields that `message_delta` may carry."""
        iterations = [each.as_json() for each in self.iterations]
        return {
            **self.prompt.as_json(),
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"thinking_tokens": self.thinking_tokens},
            **({"iterations": iterations} if iterations else {}),
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

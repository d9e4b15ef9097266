"""Bodies that the service answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "refusal",
    "model_context_window_exceeded",
]
Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; the three input counts add up to the whole prompt, and thinking is
    part of the output."""

    input_tokens: int
    output_tokens: int
    thinking_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            **self.totals_as_json(),
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.cache_creation_input_tokens,
                "ephemeral_1h_input_tokens": 0,
            },
            "service_tier": "standard",
        }

    def totals_as_json(self) -> dict[str, Any]:
        """The fields that `message_delta` may carry."""
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": self.cache_creation_input_tokens,
            "cache_read_input_tokens": self.cache_read_input_tokens,
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"thinking_tokens": self.thinking_tokens},
        }


@dataclass(frozen=True, slots=True)
class Message:
    """An answer, its blocks as JSON. `stop_reason` is None in `message_start`, before anything is
    written, and in the records of answers that were cut short."""

    id: str
    model: str
    content: Sequence[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage

    def as_json(self) -> dict[str, Any]:
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
        }

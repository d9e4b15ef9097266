"""Bodies that the service answers with."""

from dataclasses import dataclass
from typing import Any, Literal

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "refusal", "model_context_window_exceeded"
]


@dataclass(frozen=True, slots=True)
class Text:
    """A block of answered text."""

    text: str

    def as_json(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; the three input counts add up to the whole prompt."""

    input_tokens: int
    output_tokens: int
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
        }


@dataclass(frozen=True, slots=True)
class Message:
    """An answer. `stop_reason` is None only in `message_start`, before anything is written."""

    id: str
    model: str
    content: tuple[Text, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [block.as_json() for block in self.content],
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "stop_details": None,
            "usage": self.usage.as_json(),
        }

"""Requests whose prompts are to be kept, and what their answers say of that."""

import json
from typing import Any

import httpx

from tests.support.messages import body


def marked(text: str, ttl: str | None = "5m") -> dict[str, Any]:
    """A block of text, up to whose end the prompt is to be kept; not at all for None."""
    block = {"type": "text", "text": text}
    return block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def cached(*system: dict[str, Any], more: dict[str, Any] | None = None, **script: Any) -> Any:
    """A request that tells the scripted engine what to do, with these blocks before that."""
    return body(json.dumps(script), system=list(system), **(more or {}))


def split(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Of a prompt's tokens: those read, those kept for five minutes, and those for an hour."""
    created = usage["cache_creation"]
    five, hour = created["ephemeral_5m_input_tokens"], created["ephemeral_1h_input_tokens"]
    assert five + hour == usage["cache_creation_input_tokens"]
    assert min(five, hour, usage["cache_read_input_tokens"]) >= 0
    return usage["cache_read_input_tokens"], five, hour


def total(usage: dict[str, Any]) -> int:
    """All tokens of the prompt."""
    created, read = usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
    return usage["input_tokens"] + created + read


def counted(client: httpx.Client, request: dict[str, Any]) -> int:
    answer = client.post("/v1/messages/count_tokens", json=request).raise_for_status()
    return answer.json()["input_tokens"]

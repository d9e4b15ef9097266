"""How the requests of a session went, as far as its client tells. No outcome depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tools.qualification.coding.transcript import Transcript

_USAGE = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


@dataclass(frozen=True)
class Transport:
    """`failed` where the client had to ask again, or gave up; `not seen` where it got no answer
    at all. `usages` are those of the answers in their order, as each began; `usage` is the sum
    that the client tells at its end."""

    verdict: Literal["passed", "failed", "not seen"]
    answers: int
    turns: int | None
    tool_calls: int
    tool_errors: int
    retries: list[dict[str, Any]]
    error: str | None
    usage: Mapping[str, int]
    usages: list[Mapping[str, int]]


def transport_of(transcript: Transcript) -> Transport:
    """All that the events tell of it."""
    usages: dict[str, Mapping[str, int]] = {}
    for event in transcript.events:
        match event:
            # What the client itself says in the model's place has a model of that name.
            case {"type": "assistant", "message": {"id": str(key), "model": model, **message}}:
                if model != "<synthetic>":
                    usages[key] = _usage(message)
    retries = [each for each in transcript.events if each.get("subtype") == "api_retry"]
    result, steps = transcript.result, transcript.steps
    error = _error(result)
    failed = retries or error
    return Transport(
        "failed" if failed else "passed" if usages else "not seen",
        len(usages),
        result.get("num_turns"),
        len(steps),
        sum(bool(each.failed) for each in steps),
        retries,
        error,
        _usage(result),
        list(usages.values()),
    )


def _usage(event: Mapping[str, Any]) -> Mapping[str, int]:
    usage = event.get("usage")
    told = usage if isinstance(usage, dict) else {}
    return {name: told[name] for name in _USAGE if isinstance(told.get(name), int)}


def _error(result: Mapping[str, Any]) -> str | None:
    """What the client gave up for, if that was an answer or none."""
    said = str(result.get("result", ""))
    of_api = result.get("api_error_status") or result.get("terminal_reason") == "api_error"
    if of_api or (result.get("is_error") and said.startswith("API Error")):
        return said or "the client does not say why"
    return None

"""What a run record keeps of the answer."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from service.errors import ApiError
from service.scheduling.live_job import Reading
from service.scheduling.relay import Answered, Relay
from service.wire.responses import (
    AppliedEdit,
    CacheMiss,
    Iteration,
    IterationKind,
    Message,
    PromptUsage,
    Usage,
)
from storage.answer_pieces import content_of, pieces_in, pieces_of
from storage.errors import StorageError
from storage.jobs import Job, JobState
from storage.run_records import RunRecord

# Where a block has what was said in it, or the shape of that.
_WORDS = ("text", "thinking", "name", "signature")


def recorded(state: JobState, message: Message, error: ApiError | None) -> dict[str, Any]:
    """The content of `response.json`: a message cut short has no stop reason but an error."""
    return {
        "state": state.value,
        "message": message.as_json(),
        "error": {"type": error.type, "message": error.message} if error else None,
    }


def reading_of(job: Job, record: RunRecord) -> Reading:
    """The answer that a record holds, to be read again. Blocks.

    Raises ApiError 400 when it was kept without its content or elsewhere, StorageError.
    """
    if not record.path.is_dir():
        raise ApiError.invalid(
            "idempotency-key: the answer to the first request with it is not on this machine;"
            " ask the one that gave it, or use a new key"
        )
    response = record.response()
    if response is None:
        raise StorageError(f"the record of {job.id} lost its answer; restore it from a copy")
    if not has_content(response):
        raise ApiError.invalid(
            "idempotency-key: the answer to the first request with it was not kept, since"
            " this service records no content; use a new key"
        )
    message, relay = response["message"], Relay()
    usage = Usage.recalled(message["usage"])
    relay.publish(usage.iterations[0].prompt_at_start if usage.iterations else usage.prompt)
    for piece in pieces_of(message["content"]):
        relay.publish(piece)
    relay.publish(Answered(message["stop_reason"], message["stop_sequence"], usage))
    diagnostics: dict[str, Any] = message.get("diagnostics") or {"cache_miss_reason": None}
    miss = CacheMiss.recalled(diagnostics["cache_miss_reason"])
    return Reading(job.id, job.message_id, job.model, relay, miss, _edits(message))


def has_content(response: dict[str, Any]) -> bool:
    """Whether a record's `response.json` has the answer itself, not its shape only."""
    content = response["message"]["content"]
    return not any(isinstance(block.get(key), dict) for block in content for key in _WORDS)


def as_event(usage: PromptUsage) -> dict[str, int]:
    """What the record's event `cache` says: how the tokens of the prompt were told to clients."""
    return {
        "read": usage.cache_read,
        "created_5m": usage.cache_creation_5m,
        "created_1h": usage.cache_creation_1h,
    }


def told_of(event: dict[str, Any], tokens: int) -> PromptUsage:
    """What the event `cache` says of a prompt of so many tokens."""
    told = event["read"], event["created_5m"], event["created_1h"]
    return PromptUsage(tokens - sum(told), *told)


def usage_in(
    events: Sequence[dict[str, Any]], tokens: int, first: IterationKind = "message"
) -> Usage:
    """What clients were told, or would have been, of a run the `first` prompt of which has so many
    tokens."""
    rounds = [Iteration(PromptUsage(tokens), 0, kind=first)]
    for each in events:
        last = rounds[-1]
        match each["event"]:
            case "round":
                rounds.append(Iteration(PromptUsage(each["tokens"]), 0))
            case "cache":
                rounds[-1] = replace(last, prompt=told_of(each, last.prompt.total))
            case "tokens":
                rounds[-1] = replace(
                    last,
                    output_tokens=last.output_tokens + each.get("count", len(each.get("ids", ()))),
                    thinking_tokens=last.thinking_tokens + each.get("thinking", 0),
                )
            case _:
                pass
    return Usage.of(rounds)


def _first_of(record: RunRecord) -> IterationKind:
    """What the first round was for, as far as a record that may not be whole knows."""
    with suppress(StorageError):
        summary = record.prompt().get("summary")
        if summary and summary["in_place"]:
            return "compaction"
    return "message"


def claims(events: Sequence[dict[str, Any]]) -> int:
    """How often the run has been claimed, as far as its record knows."""
    return max((each["attempt"] for each in events if each["event"] == "claimed"), default=0)


def close_unfinished(
    job: Job, record: RunRecord, state: JobState, error: ApiError
) -> dict[str, Any]:
    """Close the record of a job that nobody has in memory. Returns its `response.json`.

    Blocks. Raises StorageError, and what comes of a record that has not the shape of one.
    """
    events = record.events()
    if claims(events) < job.attempt:  # lost with the process that claimed it
        at = job.started_at or job.created_at
        record.append([{"event": "claimed", "at": at, "attempt": job.attempt}])
    shown = [each for each in events if each["event"] in ("tokens", "results")]
    message = Message(
        id=job.message_id,
        model=job.model,
        content=content_of(piece for each in shown for piece in pieces_in(each)),
        stop_reason=None,
        stop_sequence=None,
        usage=usage_in(events, job.input_tokens, _first_of(record)),
    )
    response = recorded(state, message, error)
    if characters := sum(each.get("chars", 0) for each in shown):  # recorded without content
        response["message"]["content"] = [{"type": "text", "text": {"chars": characters}}]
    record.close(response=response, telemetry=None)
    return response


def _edits(message: dict[str, Any]) -> list[AppliedEdit] | None:
    if "context_management" not in message:
        return None
    return [AppliedEdit.recalled(each) for each in message["context_management"]["applied_edits"]]

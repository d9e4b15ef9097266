"""Batches as the service answers with them: the batch, the lines of its results, its progress."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from service.wire.events import Event
from storage.batch import Batch, Outcome, Result
from storage.batch_progress import Move


def batch_json(
    batch: Batch, counts: Mapping[Outcome, int] | None, results_url: str
) -> dict[str, Any]:
    """A `MessageBatch`. Its `counts` are None, and by contract all are processing, until it has
    ended."""
    if counts is None:
        counts = dict.fromkeys(Outcome, 0) | {Outcome.PROCESSING: batch.total}
    ended = batch.ended_at is not None
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": _status(batch),
        "request_counts": _counts(counts),
        "created_at": _time(batch.created_at),
        "expires_at": _time(batch.expires_at),
        "cancel_initiated_at": _time(batch.cancel_requested_at),
        "ended_at": _time(batch.ended_at),
        "archived_at": None,
        "results_url": results_url if ended else None,
    }


def deleted_json(batch_id: str) -> dict[str, Any]:
    return {"id": batch_id, "type": "message_batch_deleted"}


def result_line(result: Result) -> bytes:
    """One line of a batch's results, with its end."""
    line = {"custom_id": result.custom_id, "result": _result(result)}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def progress(move: Move, counts: Mapping[Outcome, int]) -> Event:
    """A request came into another state; `counts` are those of now, also while a past is told."""
    return {
        "type": "progress",
        "custom_id": move.custom_id,
        "run_id": move.run_id,
        "state": move.state,
        "at": _time(move.at),
        "counts": _counts(counts),
    }


def ended(ended_at: float, counts: Mapping[Outcome, int]) -> Event:
    return {"type": "ended", "at": _time(ended_at), "counts": _counts(counts)}


def _status(batch: Batch) -> str:
    if batch.ended_at is not None:
        return "ended"
    return "in_progress" if batch.cancel_requested_at is None else "canceling"


def _counts(counts: Mapping[Outcome, int]) -> dict[str, int]:
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _result(result: Result) -> dict[str, Any]:
    match result.outcome:
        case Outcome.SUCCEEDED:
            return {"type": "succeeded", "message": orjson.Fragment(result.message or b"null")}
        case Outcome.ERRORED:
            error = {"type": result.error_type, "message": result.error_message}
            return {
                "type": "errored",
                "error": {"type": "error", "error": error, "request_id": result.request_id},
            }
        case outcome:
            return {"type": outcome}


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()

"""Jobs whose process has gone: brought to an end that their records bear out."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import to_thread

from service.errors import ApiError
from service.scheduling.recorded import message_of, recorded
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState
from storage.run_records import RunRecord
from storage.telemetry import Telemetry

logger = logging.getLogger("mererun.recovery")

_WHILE_RUNNING = "the service ended while the run was going on"
_WHILE_QUEUED = "the service ended before the run began"
_DAMAGED = "the run's record has not the shape of one"
_NO_RECORD = (LookupError, TypeError, ValueError, AttributeError)


async def recover(jobs: Jobs, data_dir: Path, is_alive: Callable[[str], bool]) -> int:
    """End every job that a service which is gone left queued or running; returns how many.

    To be called while holding the data folder's lock and before the first job is admitted: a
    queued job then has no connection left to answer. A run whose record is closed has only lost
    its row's last write, which is made up for; any other is `interrupted`.
    """
    orphans = await jobs.orphans(is_alive)
    for job in orphans:
        try:
            await _release(jobs, job, data_dir)
        except (StorageError, *_NO_RECORD) as error:
            # One damaged record must not keep the service from starting.
            said = str(error) if isinstance(error, StorageError) else _DAMAGED
            logger.error("%s: %s", job.id, said)
            await jobs.finish(job, JobState.FAILED, error_type="api_error", error_message=said)
    queued = await jobs.queued()
    for job in queued:
        if job.cancel_requested_at is None:
            await jobs.interrupt_queued(job.id, _WHILE_QUEUED)
            continue
        try:
            await to_thread.run_sync(_close_as_cancelled, job, data_dir)
        except (StorageError, *_NO_RECORD) as error:
            logger.error("%s: %s", job.id, error)
        await jobs.cancel_queued(job.id)
    if orphans or queued:
        logger.info("ended %d runs that an earlier service left behind", len(orphans) + len(queued))
    return len(orphans) + len(queued)


async def _release(jobs: Jobs, job: Job, data_dir: Path) -> None:
    record = RunRecord.at(data_dir / job.record)
    response = await to_thread.run_sync(record.response)
    if response is None:
        if job.cancel_requested_at is None:
            await jobs.finish(
                job, JobState.INTERRUPTED, error_type="api_error", error_message=_WHILE_RUNNING
            )
            return
        response = await to_thread.run_sync(_close_as_cancelled, job, data_dir)
    telemetry = await to_thread.run_sync(record.telemetry)
    error: dict[str, str] = response["error"] or {}
    await jobs.finish(
        job,
        JobState(response["state"]),
        stop_reason=response["message"]["stop_reason"],
        error_type=error.get("type"),
        error_message=error.get("message"),
        output_tokens=response["message"]["usage"]["output_tokens"],
        telemetry=Telemetry(**telemetry) if telemetry else None,
    )


def _close_as_cancelled(job: Job, data_dir: Path) -> dict[str, Any]:
    record = RunRecord.at(data_dir / job.record)
    tokens = [each for each in record.events() if each["event"] == "tokens"]
    message = message_of(
        job.message_id,
        job.model,
        "".join(each.get("text", "") for each in tokens),
        input_tokens=job.input_tokens,
        output_tokens=sum(each.get("count", len(each.get("ids", ()))) for each in tokens),
        stop_reason=None,
        stop_sequence=None,
    )
    response = recorded(JobState.CANCELLED, message, ApiError.cancelled(job.cancel_reason))
    if characters := sum(each.get("chars", 0) for each in tokens):  # recorded without content
        response["message"]["content"] = [{"type": "text", "text": {"chars": characters}}]
    record.close(response=response, telemetry=None)
    return response

"""Jobs whose process has gone: put back, or brought to an end that their records bear out."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import to_thread

from service.errors import ApiError
from service.scheduling.recorded import claims, close_unfinished, has_content
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.jobs import Job, Jobs, JobState
from storage.json_text import to_json
from storage.run_records import RunRecord
from storage.telemetry import Telemetry

logger = logging.getLogger("mererun.recovery")

_WHILE_RUNNING = "the service ended while the run was going on"
_WHILE_QUEUED = "the service ended before the run began"
_DAMAGED = "the run's record has not the shape of one"
_NO_RECORD = (LookupError, TypeError, ValueError, AttributeError)
# Owners that are gone in the middle of one job: it may be the job that ends them.
_MOST_LOST_LEASES = 5
_QUARANTINED = f"quarantined: {_MOST_LOST_LEASES} services ended while it was running"


async def recover(
    jobs: Jobs, data_dir: Path, is_alive: Callable[[str], bool], *, me: str | None = None
) -> int:
    """See to every job that a process which is gone left running or queued; returns how many.

    `me` is the owner whose leases never end by the clock alone: a process knows itself to be
    alive, however long the machine slept or its clock was set ahead.

    A run whose record is closed has only lost its row's last write, which is made up for.
    Background work is queued again; a run with a connection is `interrupted`, queued or not, since
    its connection is gone.
    """
    orphans = [job for job in await jobs.orphans(is_alive) if job.owner != me]
    for job in orphans:
        try:
            await _release(jobs, job, data_dir)
        except (StorageError, *_NO_RECORD) as error:
            # One damaged record must not keep the service from starting.
            said = str(error) if isinstance(error, StorageError) else _DAMAGED
            logger.error("%s: %s", job.id, said)
            await jobs.finish(job, JobState.FAILED, error_type="api_error", error_message=said)
    left = [job for job in await jobs.queued_at_home() if _is_left(job, is_alive)]
    for job in left:
        if job.cancel_requested_at is None:
            said = _WHILE_RUNNING if job.attempt else _WHILE_QUEUED
            await jobs.interrupt_queued(job.id, said)
            continue
        response = None
        try:
            response = await to_thread.run_sync(_close_cancelled, job, data_dir)
        except (StorageError, *_NO_RECORD) as error:
            logger.error("%s: %s", job.id, error)
        tokens = response["message"]["usage"]["output_tokens"] if response else None
        await jobs.cancel_queued(job.id, output_tokens=tokens)
    if orphans or left:
        logger.info("saw to %d runs that an earlier service left behind", len(orphans) + len(left))
    return len(orphans) + len(left)


def _is_left(job: Job, is_alive: Callable[[str], bool]) -> bool:
    if job.home is None:
        return job.cancel_requested_at is not None
    return not is_alive(job.home)


async def _release(jobs: Jobs, job: Job, data_dir: Path) -> None:
    record = RunRecord.at(data_dir / job.record)
    response = await to_thread.run_sync(_response, record, job)
    if response is None and job.cancel_requested_at is not None:
        response = await to_thread.run_sync(_close_cancelled, job, data_dir)
    elif response is None and job.is_background:
        if job.lost_leases + 1 < _MOST_LOST_LEASES:
            await jobs.requeue(job, owner_died=True)
            return
        error = ApiError.internal(_QUARANTINED)
        response = await to_thread.run_sync(_close, job, data_dir, JobState.FAILED, error)
    elif response is None:
        await jobs.finish(
            job, JobState.INTERRUPTED, error_type="api_error", error_message=_WHILE_RUNNING
        )
        return
    await _make_up(jobs, job, record, response)


def _response(record: RunRecord, job: Job) -> dict[str, Any] | None:
    """The end of this attempt, if the row can be made up from it."""
    response = record.response()
    if response is None:
        return None
    if response["state"] == JobState.CANCELLED and claims(record.events()) != job.attempt:
        return None  # of an earlier attempt: the run was resumed
    if response["state"] == JobState.SUCCEEDED and job.batch_id and not has_content(response):
        return None  # the batch's result is lost
    return response


async def _make_up(
    jobs: Jobs, job: Job, record: RunRecord, response: dict[str, Any] | None
) -> None:
    """Write the row's end as the record has it."""
    if response is None:  # there is no record here
        if job.cancel_requested_at is not None:
            await jobs.finish(job, JobState.CANCELLED)
        else:
            await jobs.finish(
                job, JobState.FAILED, error_type="api_error", error_message=_QUARANTINED
            )
        return
    failpoint("making up")
    telemetry = await to_thread.run_sync(record.telemetry)
    error: dict[str, str] = response["error"] or {}
    state, message = JobState(response["state"]), response["message"]
    await jobs.finish(
        job,
        state,
        stop_reason=message["stop_reason"],
        error_type=error.get("type"),
        error_message=error.get("message"),
        output_tokens=message["usage"]["output_tokens"],
        telemetry=Telemetry(**telemetry) if telemetry else None,
        result=to_json(message) if job.batch_id and state is JobState.SUCCEEDED else None,
    )


def _close_cancelled(job: Job, data_dir: Path) -> dict[str, Any] | None:
    return _close(job, data_dir, JobState.CANCELLED, ApiError.cancelled(job.cancel_reason))


def _close(job: Job, data_dir: Path, state: JobState, error: ApiError) -> dict[str, Any] | None:
    """None for a job that has no record here: it ran elsewhere, or was never prepared."""
    record = RunRecord.at(data_dir / job.record)
    return close_unfinished(job, record, state, error) if record.path.is_dir() else None

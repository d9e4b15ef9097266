"""Admits one job at a time to the engine, and brings each to its end."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio

from models.engine.host import EngineHost
from models.engine.protocol import Stats
from service.errors import ApiError
from service.scheduling.answering import Answering, Outcome
from service.scheduling.lease import LeaseLost, keep_lease
from service.scheduling.live_job import Ending, LiveJob
from service.scheduling.recorded import message_of, recorded
from service.scheduling.relay import Broken
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState
from storage.telemetry import Telemetry

logger = logging.getLogger("mererun.scheduler")

_RETRY_SECONDS = 1.0  # after the database refused a claim, for instance on a full disk


class Scheduler:
    """The claim loop. `live` holds every job of this process that has not ended."""

    def __init__(
        self, jobs: Jobs, engine: EngineHost, *, owner: str, engine_name: str, lease_seconds: float
    ) -> None:
        self.live: dict[str, LiveJob] = {}
        self._jobs = jobs
        self._engine = engine
        self._owner = owner
        self._engine_name = engine_name
        self._lease_seconds = lease_seconds
        self._wake = anyio.Event()
        self._ended = anyio.Event()

    def wake(self) -> None:
        """There may be something to claim."""
        self._wake.set()

    async def run(self) -> None:
        """Claim and run jobs until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            try:
                job = await self._jobs.claim(self._owner, self._engine_name, self._lease_seconds)
                if job is not None:
                    await self._run(job)
                    if self.live:
                        self.wake()
            except StorageError as error:
                logger.error("%s", error)
                await anyio.sleep(_RETRY_SECONDS)
                self.wake()

    async def stop(self, live: LiveJob, ending: Ending) -> None:
        """End a running job before its answer is complete; the first ending given stands."""
        live.ending = live.ending or ending
        await self._engine.cancel(live.id)

    async def cancel_queued(self, job_id: str, ending: Ending) -> None:
        """End a job that was asked to stop before it was claimed, and so never will be claimed."""
        live = self.live.get(job_id)
        if live is None:
            await self._jobs.cancel_queued(job_id)
            return
        async with live.closing:
            if job_id not in self.live:
                return
            outcome = _unanswered(ending)
            try:
                await live.journal.close(_response(live, outcome), None)
                await self._jobs.cancel_queued(job_id)
            except StorageError as error:
                logger.error("%s", error)
            finally:
                self._tell(live, outcome)

    async def interrupt_all(self, ending: Ending) -> None:
        """End every job, queued or running."""
        for live in list(self.live.values()):
            async with live.closing:
                if live.id in self.live:
                    await self._interrupt(live, ending)

    async def _interrupt(self, live: LiveJob, ending: Ending) -> None:
        try:
            was_queued = await self._jobs.interrupt_queued(live.id, ending.error.message)
        except StorageError as error:
            logger.error("%s", error)
            await self.stop(live, ending)
            was_queued = True  # as far as its readers are concerned; the next start ends the row
        if was_queued:
            self._tell(live, _unanswered(ending))
        else:
            await self.stop(live, ending)

    def forget(self, job_id: str) -> None:
        """Nobody runs or reads the job any more."""
        self.live.pop(job_id, None)
        self._ended.set()
        self._ended = anyio.Event()

    async def idle(self) -> None:
        """Wait until no job is left."""
        while self.live:
            await self._ended.wait()

    async def _run(self, job: Job) -> None:
        live = self.live.get(job.id)
        if live is None:
            await self._finish_unread(job)
            return
        live.journal.write("claimed", attempt=job.attempt)
        outcome = await self._answer(job, live)
        if outcome.ending is None or outcome.ending.state is not None:
            outcome = await self._finish(job, live, outcome)
        self._tell(live, outcome)

    async def _finish_unread(self, job: Job) -> None:
        """End a job whose readers have gone without its row saying so."""
        gone = ApiError.internal("nobody waits for the answer any more")
        while True:
            try:
                await self._write_end(
                    job, _unanswered(Ending(JobState.INTERRUPTED, gone)), telemetry=None
                )
                self.wake()  # there may be more of the kind
                return
            except StorageError as error:
                logger.error("%s", error)
                await anyio.sleep(_RETRY_SECONDS)

    async def _answer(self, job: Job, live: LiveJob) -> Outcome:
        async def guard(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
            try:
                await work(*arguments)
            except LeaseLost as lost:
                logger.error("%s", lost)
                await self.stop(live, Ending(None, ApiError.internal(str(lost))))
            except StorageError as error:
                logger.error("%s", error)
                await self.stop(live, Ending(JobState.FAILED, ApiError.internal(str(error))))

        answering = Answering(self._engine, live)
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(guard, keep_lease, self._jobs, job, self._lease_seconds)
            helpers.start_soon(guard, live.journal.run)
            await answering.run()
            helpers.cancel_scope.cancel()
        return answering.outcome()

    async def _finish(self, job: Job, live: LiveJob, outcome: Outcome) -> Outcome:
        """Close the record, then write the row. Returns what the readers are to be told.

        Nothing can be claimed while the row says that the engine is taken, so there is nothing
        better to do than to try until it is written; the readers need not wait for that.
        """
        telemetry = _telemetry(job, live, outcome)
        closed = outcome.state is JobState.INTERRUPTED  # such a record may be continued
        if closed:
            with suppress(StorageError):  # what it lacks can be generated again
                await live.journal.flush()
        while True:
            if not closed:
                try:
                    await live.journal.close(_response(live, outcome), telemetry)
                    closed = True
                except StorageError as error:
                    logger.error("%s", error)
                    outcome = _failed(outcome, error)
            try:
                if await self._write_end(job, outcome, telemetry):
                    return outcome
                return _failed(outcome, LeaseLost(f"the lease of {job.id} was lost"))
            except StorageError as error:
                logger.error("%s", error)
            # The row will say what a closed record says, if need be after the next start.
            self._tell(live, outcome)
            await anyio.sleep(_RETRY_SECONDS)

    async def _write_end(self, job: Job, outcome: Outcome, telemetry: Telemetry | None) -> bool:
        answered, ending = outcome.answered, outcome.ending
        return await self._jobs.finish(
            job,
            outcome.state,
            stop_reason=answered.stop_reason if answered else None,
            error_type=ending.error.type if ending else None,
            error_message=ending.error.message if ending else None,
            output_tokens=outcome.output_tokens,
            telemetry=telemetry,
        )

    def _tell(self, live: LiveJob, outcome: Outcome) -> None:
        if live.id not in self.live:
            return
        if outcome.answered is not None:
            live.relay.publish(outcome.answered)
        elif outcome.ending is not None:
            live.relay.publish(Broken(outcome.ending.error))
        self.forget(live.id)


def _unanswered(ending: Ending) -> Outcome:
    """Of a job that never ran."""
    return Outcome(None, ending, "", 0, 0.0, Stats())


def _failed(outcome: Outcome, error: Exception) -> Outcome:
    ending = Ending(JobState.FAILED, ApiError.internal(str(error)))
    return replace(outcome, answered=None, ending=ending)


def _response(live: LiveJob, outcome: Outcome) -> dict[str, Any]:
    answered = outcome.answered
    message = message_of(
        live.message_id,
        live.model,
        outcome.text,
        input_tokens=live.input_tokens,
        output_tokens=outcome.output_tokens,
        stop_reason=answered.stop_reason if answered else None,
        stop_sequence=answered.stop_sequence if answered else None,
    )
    return recorded(outcome.state, message, outcome.ending.error if outcome.ending else None)


def _telemetry(job: Job, live: LiveJob, outcome: Outcome) -> Telemetry:
    stats = outcome.stats
    started_at = job.started_at or job.created_at
    return Telemetry(
        queue_seconds=started_at - job.created_at,
        load_seconds=outcome.load_seconds,
        prefill_seconds=stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        engine_seconds=stats.prefill_seconds + stats.decode_seconds,
        input_tokens=live.input_tokens,
        output_tokens=outcome.output_tokens,
        prefilled_tokens=stats.prefilled_tokens,
        peak_memory_bytes=stats.peak_memory_bytes or None,
        first_token_seconds=stats.first_token_seconds,
        longest_step_seconds=stats.longest_step_seconds or None,
    )

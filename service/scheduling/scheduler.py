"""Admits one job at a time to the engine, and brings each to its end."""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

from models.engine.host import EngineHost
from service.errors import ApiError
from service.preparation import Preparation
from service.scheduling.answering import Answering, Fault, Outcome, leave
from service.scheduling.finishing import RETRY_SECONDS, Finishing, response_of
from service.scheduling.lease import LeaseLost, keep_lease
from service.scheduling.live_job import Ending, LiveJob
from service.scheduling.preemption import QUANTUM_TOKENS, preempts
from service.scheduling.relay import Broken
from service.scheduling.revival import Revival
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.jobs import Job, Jobs, JobState, Priority

logger = logging.getLogger("mererun.scheduler")

# A job that ends the engine this often is not run again: it would do so for ever.
_MOST_ENGINE_DEATHS = 2
_PREEMPTED = Ending(JobState.QUEUED, ApiError.internal("the run makes room for another"))
_GONE = Ending(JobState.INTERRUPTED, ApiError.internal("nobody waits for the answer any more"))


@dataclass(frozen=True, slots=True)
class Claimer:
    """Who claims, for which engine, jobs of which model, and for how long at a time."""

    owner: str
    engine: str
    model: str
    lease_seconds: float


class Scheduler:
    """The claim loop. `live` holds every job of this process that has a connection."""

    def __init__(
        self,
        jobs: Jobs,
        host: EngineHost,
        claimer: Claimer,
        finishing: Finishing,
        revival: Revival,
        preparation: Preparation,
    ) -> None:
        self.live: dict[str, LiveJob] = {}
        self.running: LiveJob | None = None
        self._jobs = jobs
        self._host = host
        self._claimer = claimer
        self._finishing = finishing
        self._revival = revival
        self._preparation = preparation
        # Background jobs that left the engine for others, by the attempt in which they did.
        self._left: dict[str, tuple[int, LiveJob]] = {}
        self._cancelling_unread = anyio.Lock()
        self._next: str | None = None  # for whom the running job has to leave
        self._least = Priority.BACKGROUND
        self._more = True  # whether others than `live` may wait in the queue
        self._works = False  # also while a job is claimed and brought to mind
        self._reviving: tuple[str, anyio.CancelScope] | None = None  # what is brought to mind
        self._is_engine_missed = False  # by background jobs, at the last claim
        self._wake = anyio.Event()
        self._wake.set()
        self._ended = anyio.Event()

    async def run(self) -> None:
        """Claim and run jobs until cancelled."""
        while True:
            with anyio.move_on_after(RETRY_SECONDS if self._is_engine_missed else math.inf):
                await self._wake.wait()
            self._wake = anyio.Event()
            try:
                await self._run_next()
            except StorageError as error:
                logger.error("%s", error)
                await anyio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def admitted(self, live: LiveJob) -> None:
        """A job with a connection is queued; the running one may have to make room for it."""
        live.is_queued = True
        self.break_off_revival()
        if self._make_room():
            assert self.running is not None
            await leave(self._host, self.running)
        self._wake.set()

    def break_off_revival(self, job_id: str | None = None) -> None:
        """Put the background job that is being brought to mind, if there is one, or if it is this
        one, back into the queue."""
        if self._reviving is not None and job_id in (None, self._reviving[0]):
            self._reviving[1].cancel()

    def look_again(self) -> None:
        """Somebody, perhaps another process, may have queued a job."""
        self._more = True
        self._wake.set()

    def find(self, job_id: str) -> LiveJob | None:
        """The job, if this process has it in memory."""
        if self.running is not None and self.running.id == job_id:
            return self.running
        return self.live.get(job_id) or self._left.get(job_id, (0, None))[1]

    async def stop(self, live: LiveJob, ending: Ending) -> None:
        """End a running job before its answer is complete; the first end given stands."""
        if live.ending is None or live.ending.state is JobState.QUEUED:
            live.ending = ending
        await leave(self._host, live)

    async def cancel_queued(self, job: Job, ending: Ending) -> None:
        """End a job that was asked to stop before it was claimed, and so never will be claimed."""
        live = self.find(job.id)
        if live is None:
            if job.home in (None, self._claimer.owner):  # else readers there are to be told
                await self._cancel_unread(job.id)
            return
        async with live.closing:
            if self.find(job.id) is None:
                return
            outcome = Outcome(None, ending)
            try:
                await live.journal.close(response_of(live, outcome), None)
                failpoint("closed unclaimed")
                await self._jobs.cancel_queued(job.id, output_tokens=live.generated)
            except StorageError as error:
                logger.error("%s", error)
            finally:
                self._left.pop(job.id, None)
                self._tell(live, outcome)

    async def _cancel_unread(self, job_id: str) -> None:
        async with self._cancelling_unread:
            # Whoever asked at the same time may have ended it meanwhile, and closed its record.
            job = await self._jobs.get(job_id)
            if job is None or job.state is not JobState.QUEUED:
                return
            tokens = await self._revival.close_record(job)
            failpoint("closed unclaimed")
            await self._jobs.cancel_queued(job.id, output_tokens=tokens)

    async def leave_background(self) -> None:
        """Run no more background jobs; the running one leaves, to go on after the next start."""
        self._least = Priority.INTERACTIVE
        self.break_off_revival()
        if self.running is not None and self.running.is_background:
            await self.stop(self.running, _PREEMPTED)

    async def interrupt_all(self, ending: Ending) -> None:
        """End every job that has a connection, queued or running."""
        try:
            queued = await self._jobs.interrupt_all_queued(
                self._claimer.owner, ending.error.message
            )
        except StorageError as error:
            logger.error("%s", error)
            queued = set(self.live)  # as far as readers are concerned; the next start ends the rows
        for live in list(self.live.values()):
            if live.id in queued:
                self._tell(live, Outcome(None, ending))
        if self.running is not None:
            await self.stop(self.running, ending)

    def forget(self, job_id: str) -> None:
        """Nobody runs or reads the job any more."""
        self.live.pop(job_id, None)
        self._signal_end()

    async def gone(self, live: LiveJob) -> None:
        """Wait until a job that is to end has ended."""
        while self.find(live.id) is live:
            await self._ended.wait()

    async def idle(self) -> None:
        """Wait until no job is left that runs or has a connection."""
        while self.live or self._works:
            await self._ended.wait()

    async def run_only(self, job_id: str) -> None:
        """Run one queued job to its end, instead of `run`; or until there is no engine for it."""
        while self._host.status.error is None:
            job = await self._claim_one(self._least, job_id)
            if job is None:
                return
            await self._run(job)

    async def _run_next(self) -> None:
        self._works = True
        try:
            job = await self._claim()
            if job is None:
                self._more = False
                return
            await self._run(job)
            if self.live or self._more:
                self._wake.set()
        finally:
            self._works = False
            self._signal_end()

    async def _claim(self) -> Job | None:
        # Background jobs can wait until there is an engine; those with a reader are told.
        self._is_engine_missed = self._host.status.error is not None
        least = Priority.INTERACTIVE if self._is_engine_missed else self._least
        only, self._next = self._next, None
        if only is not None and (job := await self._claim_one(least, only)) is not None:
            return job
        return await self._claim_one(least)

    async def _claim_one(self, least: Priority, only: str | None = None) -> Job | None:
        claimer = self._claimer
        return await self._jobs.claim(
            claimer.owner,
            claimer.engine,
            claimer.lease_seconds,
            model=claimer.model,
            least=least,
            only=only,
        )

    async def _run(self, job: Job) -> None:
        failpoint("claimed")
        live = await self._live(job)
        if live is None:
            return
        self.running = live
        live.is_queued = False
        now = anyio.current_time()
        if live.left_at:
            live.stays_until = now + (now - live.left_at)
        live.queue_seconds += max(0.0, (job.started_at or 0.0) - live.queued_at)
        live.journal.write("claimed", attempt=job.attempt)
        try:
            if job.is_background:
                await self._heed_cancellation(live)
            outcome = await self._answer(job, live) if live.ending is None else None
            await self._let_go(job, live, outcome or Outcome(None, live.ending))
        finally:
            self.running = None

    async def _heed_cancellation(self, live: LiveJob) -> None:
        """It may have been asked to stop while it was taken up, which is when nobody could act."""
        with suppress(StorageError):  # the next change of the database tells it again
            job = await self._jobs.get(live.id)
            if job is not None and job.cancel_requested_at is not None:
                live.ending = live.ending or Ending.cancelled(job.cancel_reason)

    def _make_room(self) -> bool:
        """Have the running job leave if another is to run before it goes on; whether it has to.

        Whoever came too early for that, or during a claim, may still wait.
        """
        running, now = self.running, anyio.current_time()
        if running is None or running.ending is not None:
            return False
        if running.is_background and self._least is not Priority.BACKGROUND:
            running.ending = _PREEMPTED
            return True
        for live in self.live.values():
            if live.is_queued and preempts(live, running, now):
                self._next = live.id
                done = live.generated
                live.quantum = None if running.is_background else done + QUANTUM_TOKENS
                running.ending = _PREEMPTED
                return True
        return False

    async def _live(self, job: Job) -> LiveJob | None:
        """The job as it was left, here or in its record; None when it cannot be run."""
        if not job.is_background:
            live = self.live.get(job.id)
            if live is None:  # its readers have gone without its row saying so
                await self._finishing.end_unrun(job, _GONE)
            return live
        if job.attempt == 1:  # nothing that has begun waits: what had left went on elsewhere
            self._left.clear()
        attempt, live = self._left.pop(job.id, (0, None))
        if live is not None and attempt == job.attempt - 1:
            return live
        try:
            return await self._revive(job)
        except ApiError as error:
            logger.error("%s: %s", job.id, error.message)
            await self._finishing.end_unrun(job, Ending(JobState.INTERRUPTED, error))
        except LeaseLost as error:
            logger.error("%s", error)
        except StorageError as error:
            logger.error("%s: %s", job.id, error)
            await self._finishing.put_back(job, None)
            await anyio.sleep(RETRY_SECONDS)
        except Exception:
            # A fault of ours in one run costs that run, and no other.
            logger.exception("run %s could not be taken up", job.id)
            error = ApiError.internal("an internal fault; the service's log has it under this run")
            await self._finishing.end_unrun(job, Ending(JobState.INTERRUPTED, error))
        return None

    async def _revive(self, job: Job) -> LiveJob | None:
        """Under its lease, since its documents may take a while to be read. Whoever has a
        connection does not wait for that: then None, and the job is in the queue again."""
        live: LiveJob | None = None
        failure: Exception | None = None

        async def keep(scope: anyio.CancelScope) -> None:
            try:
                await keep_lease(self._jobs, job, self._claimer.lease_seconds)
            except LeaseLost as lost:
                logger.error("%s", lost)
                scope.cancel()

        try:
            async with anyio.create_task_group() as helpers:
                self._reviving = job.id, helpers.cancel_scope
                helpers.start_soon(keep, helpers.cancel_scope)
                try:
                    live = await self._revival.revive(job)
                except Exception as error:  # to be raised as it is, and not in a group
                    failure = error
                helpers.cancel_scope.cancel()
        finally:
            self._reviving = None
        if failure is not None:
            raise failure
        if live is None:
            await self._finishing.put_back(job, None)
            self._more = True
        return live

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

        answering = Answering(self._host, live, self._preparation, self._make_room)
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(guard, keep_lease, self._jobs, job, self._claimer.lease_seconds)
            helpers.start_soon(guard, live.journal.run)
            await answering.run()
            helpers.cancel_scope.cancel()
        return answering.outcome()

    async def _let_go(self, job: Job, live: LiveJob, outcome: Outcome) -> None:
        outcome = _of_background(job, outcome) if job.is_background else outcome
        ending = outcome.ending
        if ending is not None and ending.state is JobState.QUEUED:
            await self._put_back(job, live, outcome)
            return
        if ending is None or ending.state is not None:
            outcome = await self._finishing.end(
                job, live, outcome, lambda shown: self._tell(live, shown)
            )
            failpoint("ended")
        self._tell(live, outcome)

    async def _put_back(self, job: Job, live: LiveJob, outcome: Outcome) -> None:
        died = outcome.fault is Fault.ENGINE_DIED
        if not await self._finishing.put_back(job, live, engine_died=died):
            self._tell(live, Outcome(None, Ending(None, _lost(job))))
            return
        if live.ending is not None and live.ending.state is JobState.QUEUED:
            live.ending = None  # unless it was asked to stop meanwhile
        live.left_at, live.queued_at = anyio.current_time(), time.time()
        if job.is_background:
            self._left[job.id] = (job.attempt, live)
        else:
            live.is_queued = True
        self._more = True

    def _tell(self, live: LiveJob, outcome: Outcome) -> None:
        if live.id not in self.live:
            return
        if outcome.answered is not None:
            live.relay.publish(outcome.answered)
        elif outcome.ending is not None:
            live.relay.publish(Broken(outcome.ending.error))
        self.forget(live.id)

    def _signal_end(self) -> None:
        self._ended.set()
        self._ended = anyio.Event()


def _of_background(job: Job, outcome: Outcome) -> Outcome:
    """Nobody waits, so what is no fault of the job's own is tried again."""
    ending = outcome.ending
    if ending is None:
        return outcome
    again = Outcome(None, Ending(JobState.QUEUED, ending.error), outcome.fault)
    if outcome.fault is Fault.ENGINE_UNAVAILABLE:
        return again
    if outcome.fault is Fault.ENGINE_DIED:
        if job.engine_deaths + 1 < _MOST_ENGINE_DEATHS:
            return again
        said = f"quarantined: it ended the engine {_MOST_ENGINE_DEATHS} times; the last time, "
        error = ApiError.internal(said + ending.error.message)
        return Outcome(None, Ending(JobState.FAILED, error), outcome.fault)
    return outcome


def _lost(job: Job) -> ApiError:
    return ApiError.internal(f"the lease of {job.id} was lost")

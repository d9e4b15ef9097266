"""Cancellation: a column that anyone may set, acted on within one engine step."""

import logging

import anyio
from anyio.abc import TaskGroup

from service.scheduling.live_job import Ending
from service.scheduling.scheduler import Scheduler
from storage.database import Database
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState
from storage.to_the_end import to_the_end

logger = logging.getLogger("mererun.cancellation")

_RETRY_SECONDS = 1.0  # while the database cannot be read: the log says so each time
CLIENT_GONE = "the client disconnected"


class Cancellation:
    """Sets the column for this process's own reasons, and acts on it whoever set it."""

    def __init__(self, db: Database, jobs: Jobs, scheduler: Scheduler) -> None:
        self._db = db
        self._jobs = jobs
        self._scheduler = scheduler
        self._tasks: TaskGroup | None = None

    def reader_gone(self, job_id: str) -> None:
        """The connection that a job answers has ended. Never waits: its task may be dying."""
        if self._scheduler.find(job_id) is not None and self._tasks is not None:
            self._tasks.start_soon(self._stop_unread, job_id)

    async def request(self, job_id: str, reason: str) -> None:
        """Cancel a job if it is queued or running. Raises StorageError."""
        # The one who asks may be gone before the job's readers are told.
        await to_the_end(lambda: self._request(job_id, reason))

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._watch_database()
        finally:
            self._tasks = None

    async def _request(self, job_id: str, reason: str) -> None:
        job = await self._jobs.request_cancel(job_id, reason)
        if job is not None:
            await self._act(job)

    async def _stop_unread(self, job_id: str) -> None:
        try:
            await self._request(job_id, CLIENT_GONE)
        except StorageError as error:
            logger.error("%s", error)
            live = self._scheduler.find(job_id)
            if live is not None:  # whatever the database says, the engine has better to do
                await self._scheduler.stop(live, Ending.cancelled(CLIENT_GONE))

    async def _watch_database(self) -> None:
        while True:
            try:
                await self._db.changed()
                self._scheduler.look_again()
                for job in await self._jobs.cancel_requests():
                    await self._try_to_act(job)
            except StorageError as error:
                logger.error("%s", error)
                await anyio.sleep(_RETRY_SECONDS)

    async def _try_to_act(self, job: Job) -> None:
        """What fails for one job must not keep the others; the next change tries it again."""
        try:
            await self._act(job)
        except StorageError as error:
            logger.error("%s: %s", job.id, error)

    async def _act(self, job: Job) -> None:
        if job.cancel_requested_at is None:  # it had ended before the request came
            return
        ending = Ending.cancelled(job.cancel_reason)
        running = self._scheduler.running
        if job.state is JobState.QUEUED:
            await self._scheduler.cancel_queued(job, ending)
        elif running is not None and running.id == job.id:
            await self._scheduler.stop(running, ending)
        else:
            self._scheduler.break_off_revival(job.id)

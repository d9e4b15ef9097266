"""Cancellation: a column that anyone may set, acted on within one engine step."""

import logging

import anyio

from service.errors import ApiError
from service.scheduling.live_job import Ending
from service.scheduling.scheduler import Scheduler
from storage.database import Database
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState

logger = logging.getLogger("mererun.cancellation")

# How often other processes' commits are looked for. One pragma each time; nothing while idle.
_WATCH_SECONDS = 0.1
_CLIENT_CLOSED = 499  # the one status for this that SDKs know, and never retry
CLIENT_GONE = "the client disconnected"


class Cancellation:
    """Sets the column for this process's own reasons, and acts on it whoever set it."""

    def __init__(self, db: Database, jobs: Jobs, scheduler: Scheduler) -> None:
        self._db = db
        self._jobs = jobs
        self._scheduler = scheduler
        self._readers_gone: list[str] = []
        self._changed = anyio.Event()

    def reader_gone(self, job_id: str) -> None:
        """The connection that a job answers has ended. Never waits: its task may be dying."""
        if job_id in self._scheduler.live:
            self._readers_gone.append(job_id)
            self._changed.set()

    async def request(self, job_id: str, reason: str) -> Job | None:
        """Cancel a job that is queued or running; None if there is no such job.

        Returns the row as it was when the request was written.
        """
        job = await self._jobs.request_cancel(job_id, reason)
        if job is not None:
            await self._act(job)
        return job

    async def run(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as watchers:
            watchers.start_soon(self._watch_readers)
            watchers.start_soon(self._watch_database)

    async def _watch_readers(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            gone, self._readers_gone = self._readers_gone, []
            for job_id in gone:
                try:
                    if await self.request(job_id, CLIENT_GONE) is None:
                        # Its row was never written.
                        self._scheduler.forget(job_id)
                except StorageError as error:
                    logger.error("%s", error)

    async def _watch_database(self) -> None:
        while True:
            await anyio.sleep(_WATCH_SECONDS)
            try:
                if self._scheduler.live and await self._db.external_change():
                    for job in await self._jobs.cancel_requests():
                        await self._act(job)
            except StorageError as error:
                logger.error("%s", error)

    async def _act(self, job: Job) -> None:
        live = self._scheduler.live.get(job.id)
        if job.cancel_requested_at is None:  # it had ended before the request came
            return
        error = ApiError(_CLIENT_CLOSED, "api_error", f"the run was cancelled: {job.cancel_reason}")
        ending = Ending(JobState.CANCELLED, error)
        if job.state is JobState.QUEUED and await self._jobs.cancel_queued(job.id):
            if live is not None:
                await self._scheduler.close(live, ending)
        elif live is not None and job.state in (JobState.QUEUED, JobState.RUNNING):
            await self._scheduler.stop(live, ending)

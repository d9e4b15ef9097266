"""From a prepared prompt to a persisted, queued job; or to the one that was asked for before."""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import to_thread

from service.cache_diagnosis import CacheDiagnosis
from service.errors import ApiError
from service.ids import new_suffix
from service.preparation import Preparation
from service.prompts import Prompt
from service.scheduling.cancellation import Cancellation
from service.scheduling.journal import Journal
from service.scheduling.live_job import LiveJob, Reading
from service.scheduling.recorded import reading_of
from service.scheduling.rounds import Round
from service.scheduling.scheduler import Scheduler
from service.settings import Settings
from service.threads import Threads, continued_by
from service.wire.requests import MessagesRequest
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.jobs import DuplicateKey, Jobs, JobState, NewJob
from storage.redaction import redact, shapes
from storage.run_records import RunRecord, record_path
from storage.to_the_end import to_the_end

_RETRY_AFTER_SECONDS = 10
_LOOK_AGAIN_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the id of the request, and of the key it came with.

    `idempotency_key` makes it one request with all that have the same; `request_sha256` is the
    digest of the body, so that it can be told whether they are.
    """

    request_id: str
    api_key: str | None
    idempotency_key: str | None = None
    request_sha256: str | None = None


class Admission:
    """The record is written first and the row second; both before the job can be claimed."""

    def __init__(
        self,
        settings: Settings,
        model: str,
        owner: str,
        preparation: Preparation,
        threads: Threads,
        diagnosis: CacheDiagnosis,
        jobs: Jobs,
        scheduler: Scheduler,
        cancellation: Cancellation,
    ) -> None:
        self._settings = settings
        self._model = model
        self._owner = owner
        self._preparation = preparation
        self._threads = threads
        self._diagnosis = diagnosis
        self._jobs = jobs
        self._scheduler = scheduler
        self._cancellation = cancellation
        self.open = True

    async def admit(
        self,
        received: dict[str, Any],
        request: MessagesRequest,
        prompt: Prompt,
        caller: Caller,
    ) -> Reading:
        """Queue the job, or join that of the same idempotency key. Raises ApiError 400 when the
        prompt does not fit, the key is another request's or another continues the same message,
        529 when there is no place; StorageError.

        The job belongs to the tasks that called: when the last of them ends before the job does,
        because its client has gone, the job is cancelled.
        """
        _check_caller()
        while True:
            joined = await self._joined(caller) if caller.idempotency_key else None
            if joined is not None:
                return joined
            try:
                return await self._admitted(received, request, prompt, caller)
            except DuplicateKey:  # the same request came in meanwhile, or one like it
                continue

    async def _admitted(
        self,
        received: dict[str, Any],
        request: MessagesRequest,
        prompt: Prompt,
        caller: Caller,
    ) -> Reading:
        thread = await self._threads.kept(received, caller.api_key or "", caller.idempotency_key)
        suffix, now = new_suffix(), time.time()
        run = self._preparation.run(f"run_{suffix}", request, prompt, caller.api_key or "")
        message_id = f"msg_{suffix}"
        # The schemas of a hundred tools take a while.
        answer = await to_thread.run_sync(self._preparation.answer, run, prompt.plan, message_id)
        cache_miss = await self._diagnosis.of(request, prompt, caller.api_key)
        self._check_room(request)
        record = RunRecord.at(record_path(self._settings.data_dir, run.job, now))
        live = LiveJob(
            rounds=[Round(run, answer)],
            message_id=message_id,
            model=self._model,
            journal=Journal(record, content=self._settings.record_content),
            is_background=False,
            queued_at=now,
            cache_miss=cache_miss,
        )
        live.journal.write("admitted", request_id=caller.request_id)
        new = NewJob(
            id=run.job,
            message_id=live.message_id,
            request_id=caller.request_id,
            model=live.model,
            streaming=bool(request.stream),
            api_key=caller.api_key,
            record=str(record.path.relative_to(self._settings.data_dir)),
            created_at=now,
            input_tokens=live.input_tokens,
            max_tokens=run.max_tokens,
            home=self._owner,
            idempotency_key=caller.idempotency_key,
            request_sha256=caller.request_sha256,
            continues=continued_by(received),
        )
        self._scheduler.live[run.job] = live
        self._belongs_to_this_task(live)

        async def write() -> None:
            try:
                failpoint("admitting")
                await to_thread.run_sync(self._create_record, live, prompt, received, thread, now)
                failpoint("recorded")
                await self._insert(new, record)
                failpoint("inserted")
            except BaseException:
                self._scheduler.forget(run.job)
                raise
            await self._scheduler.admitted(live)

        # Its client may go at any moment; half an admission would leave half a job.
        await to_the_end(write)
        return live.reading

    async def _joined(self, caller: Caller) -> Reading | None:
        """The job of the caller's idempotency key, unless it came to nothing."""
        while True:
            job = await self._jobs.with_key(caller.api_key, caller.idempotency_key or "")
            if job is None:
                return None
            if job.request_sha256 != caller.request_sha256:
                raise ApiError.invalid(
                    "idempotency-key: another request was sent with it; use a new key"
                )
            if job.state is JobState.SUCCEEDED:
                record = RunRecord.at(self._settings.data_dir / job.record)
                return await to_thread.run_sync(reading_of, job, record)
            live = self._scheduler.find(job.id)
            if live is None and job.home == self._owner:
                await anyio.sleep(_LOOK_AGAIN_SECONDS)
                continue  # it ended, and its row may have to wait for room on the disk
            if live is None:
                raise ApiError.overloaded(
                    "the request with this idempotency-key is answered by another service",
                    _RETRY_AFTER_SECONDS,
                )
            is_to_end = live.ending is not None and live.ending.state is not JobState.QUEUED
            if live.readers and not is_to_end:
                live.journal.write("joined", request_id=caller.request_id)
                self._belongs_to_this_task(live)
                return live.reading
            await self._scheduler.gone(live)

    def _belongs_to_this_task(self, live: LiveJob) -> None:
        live.readers += 1

        def left() -> None:
            live.readers -= 1
            if live.readers == 0:
                self._cancellation.reader_gone(live.id)

        _when_done(left)

    async def _insert(self, new: NewJob, record: RunRecord) -> None:
        try:
            await self._jobs.insert(new)
        except (StorageError, DuplicateKey):
            await to_thread.run_sync(lambda: shutil.rmtree(record.path, ignore_errors=True))
            raise

    def _check_room(self, request: MessagesRequest) -> None:
        code = "compaction_unavailable" if request.compaction else None
        if not self.open:
            raise ApiError.overloaded("the service is shutting down", _RETRY_AFTER_SECONDS, code)
        if len(self._scheduler.live) >= self._settings.queue_limit:
            raise ApiError.overloaded(
                f"the queue is full: {self._settings.queue_limit} requests are waiting",
                _RETRY_AFTER_SECONDS,
                code,
            )

    def _create_record(
        self,
        live: LiveJob,
        prompt: Prompt,
        received: dict[str, Any],
        thread: dict[str, Any] | None,
        now: float,
    ) -> None:
        content = self._settings.record_content
        kept = redact(received, prompt.files)
        RunRecord.create(
            self._settings.data_dir,
            live.id,
            now,
            request=kept if content else shapes(kept),
            prompt=self._preparation.recorded(
                live.run,
                prompt.plan,
                content=content,
                digests=prompt.digests,
                cache_miss=live.cache_miss,
            ),
            thread=thread,
        )


def _when_done(callback: Callable[[], None]) -> None:
    _this_task().add_done_callback(lambda _: callback())


def _check_caller() -> None:
    """Before Python 3.12, `asyncio.wait_for`, in which Quart reads the body, may swallow the
    cancellation that says that the client has gone."""
    if _this_task().cancelling():
        raise asyncio.CancelledError


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task

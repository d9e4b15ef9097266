"""From a prepared prompt to a persisted, queued job."""

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread

from models.catalog import Checkpoint
from models.engine.protocol import Run
from models.families.family import Family, PreparedPrompt
from service.errors import ApiError
from service.ids import new_suffix
from service.scheduling.cancellation import Cancellation
from service.scheduling.journal import Journal
from service.scheduling.live_job import LiveJob
from service.scheduling.scheduler import Scheduler
from service.settings import Settings
from service.wire.requests import MessagesRequest
from storage.errors import StorageError
from storage.jobs import Jobs, NewJob
from storage.redaction import redact, shapes
from storage.run_records import RunRecord, record_path
from storage.to_the_end import to_the_end

_RETRY_AFTER_SECONDS = 10
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the id of the request, and of the key it came with."""

    request_id: str
    api_key: str | None


class Admission:
    """The record is written first and the row second; both before the job can be claimed."""

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        family: Family,
        jobs: Jobs,
        scheduler: Scheduler,
        cancellation: Cancellation,
    ) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._family = family
        self._jobs = jobs
        self._scheduler = scheduler
        self._cancellation = cancellation
        self.open = True

    async def admit(
        self,
        received: dict[str, Any],
        request: MessagesRequest,
        prompt: PreparedPrompt,
        caller: Caller,
    ) -> LiveJob:
        """Queue the job. Raises ApiError 529 when there is no place, StorageError.

        The job belongs to the calling task: when that ends before the job does, because its client
        has gone, the job is cancelled.
        """
        _check_caller()
        self._check_room()
        suffix, now = new_suffix(), time.time()
        run = self._run_of(f"run_{suffix}", request, prompt)
        record = RunRecord.at(record_path(self._settings.data_dir, run.job, now))
        live = LiveJob(
            run=run,
            message_id=f"msg_{suffix}",
            model=self._checkpoint.id,
            parser=self._family.parser(request.stop_sequences or ()),
            journal=Journal(record, content=self._settings.record_content),
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
        )
        self._scheduler.live[run.job] = live
        _when_done(lambda: self._cancellation.reader_gone(run.job))

        async def write() -> None:
            try:
                await to_thread.run_sync(self._create_record, run, received, request, now)
                await self._insert(new, record)
            except BaseException:
                self._scheduler.forget(run.job)
                raise

        # Its client may go at any moment; half an admission would leave half a job.
        await to_the_end(write)
        self._scheduler.wake()
        return live

    async def _insert(self, new: NewJob, record: RunRecord) -> None:
        try:
            await self._jobs.insert(new)
        except StorageError:
            await to_thread.run_sync(lambda: shutil.rmtree(record.path, ignore_errors=True))
            raise

    def _check_room(self) -> None:
        if not self.open:
            raise ApiError.overloaded("the service is shutting down", _RETRY_AFTER_SECONDS)
        if len(self._scheduler.live) >= self._settings.queue_limit:
            raise ApiError.overloaded(
                f"the queue is full: {self._settings.queue_limit} requests are waiting",
                _RETRY_AFTER_SECONDS,
            )

    def _run_of(self, job: str, request: MessagesRequest, prompt: PreparedPrompt) -> Run:
        defaults = self._checkpoint.sampling
        return Run(
            job=job,
            max_tokens=request.max_tokens,
            temperature=_first(request.temperature, defaults.temperature),
            top_p=_first(request.top_p, defaults.top_p),
            # Whatever exceeds the vocabulary limits nothing, as 0 does.
            top_k=min(_first(request.top_k, defaults.top_k), self._checkpoint.vocabulary),
            seed=_first(request.seed, secrets.randbits(63)),
            stop_ids=tuple(sorted(self._family.stop_ids)),
            prompt=prompt.ids,
        )

    def _create_record(
        self, run: Run, received: dict[str, Any], request: MessagesRequest, now: float
    ) -> None:
        content = self._settings.record_content
        kept = redact(received)
        prompt = {
            "model": self._checkpoint.id,
            "weights_sha256": self._checkpoint.weights_sha256,
            "family": self._family.name,
            "tokens": len(run.prompt),
            "ids": run.prompt.tolist() if content else None,
            "max_tokens": run.max_tokens,
            "temperature": run.temperature,
            "top_p": run.top_p,
            "top_k": run.top_k,
            "seed": run.seed,
            "stop_ids": list(run.stop_ids),
            "stop_sequences": len(request.stop_sequences or ()),
        }
        RunRecord.create(
            self._settings.data_dir,
            run.job,
            now,
            request=kept if content else shapes(kept),
            prompt=prompt,
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


def _first(given: T | None, default: T) -> T:
    return default if given is None else given

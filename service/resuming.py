"""One run taken to its end without a service."""

import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio import to_thread

from models.catalog import resolve
from models.engine.host import WORKER, EngineUnavailable
from models.families import family_of
from service.core import Core
from service.errors import ApiError
from service.housekeeping import Housekeeping
from service.scheduling.live_job import Ending
from service.settings import Settings
from storage import data_dir
from storage.database import Database
from storage.jobs import Job, JobState

_STOPPED = ApiError.internal("it was stopped by hand; resume it again to go on")


class CannotResume(Exception):
    """One sentence for people that says why, and what to do."""


async def finish_run(
    settings: Settings,
    run_id: str,
    watch: Callable[[Job], Coroutine[Any, Any, object]],
    *,
    engine_command: Sequence[str] = WORKER,
) -> Job:
    """Do with one run what a service would, in a data folder that no service works on.

    What a service that is gone left is seen to first, as at its start. `watch` is called with the
    run when it is queued, and returns when it has ended. Returns the run as it is then. Raises
    CannotResume, CheckpointError, StorageError, EngineUnavailable; a run that was queued then goes
    on with the next service. SIGINT and SIGTERM interrupt the run,
    or leave it queued if it has not begun.
    """
    checkpoint = resolve(settings.model, settings.models_dir)
    weights = checkpoint.weights_sha256
    family = await to_thread.run_sync(family_of, checkpoint)
    async with AsyncExitStack() as stack:
        stack.enter_context(
            data_dir.lock(settings.data_dir, model=checkpoint.id, weights_sha256=weights)
        )
        db = await stack.enter_async_context(Database.open(settings.database))
        core = Core.of(settings, checkpoint, family, db, engine_command)
        await Housekeeping(core).at_start()
        job = await _queued(core, run_id)
        fault: str | None = None
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(core.engine.run)
            helpers.start_soon(core.cancellation.run)
            helpers.start_soon(_stop_on_signals, core, helpers.cancel_scope)
            async with anyio.create_task_group() as work:
                work.start_soon(watch, job)
                if (await core.engine.settled()).error is None:
                    await core.scheduler.run_only(run_id)
                fault = core.engine.status.error
                if fault is not None:
                    work.cancel_scope.cancel()
            helpers.cancel_scope.cancel()
        if fault is not None:
            raise EngineUnavailable(f"{fault}; {run_id} goes on when a service is started")
        return await core.jobs.get(run_id) or job


async def _stop_on_signals(core: Core, all_of_it: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if core.scheduler.running is None:  # the engine is still loading
                all_of_it.cancel()
            else:
                await core.scheduler.interrupt_all(Ending(JobState.INTERRUPTED, _STOPPED))


async def _queued(core: Core, run_id: str) -> Job:
    job = await core.jobs.get(run_id)
    if job is None:
        raise CannotResume(f"{run_id} was removed")
    if job.state is JobState.QUEUED:  # it was resumed before, and the service ended
        return job
    why_not = await core.resume(job)
    if why_not is not None:
        raise CannotResume(why_not)
    return await core.jobs.get(run_id) or job

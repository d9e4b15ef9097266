"""One run taken to its end without a service."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio
from anyio import to_thread

from models.catalog import resolve
from models.engine.host import WORKER, EngineUnavailable
from models.families import family_of
from service.core import Core
from service.housekeeping import Housekeeping
from service.settings import Settings
from storage import data_dir
from storage.database import Database


async def finish_run(
    settings: Settings, run_id: str, *, engine_command: Sequence[str] = WORKER
) -> None:
    """Do with one queued run what a service would, in a data folder that no service works on.

    What a service that is gone left is seen to as at its start. Raises CheckpointError,
    StorageError, EngineUnavailable; the run then waits for the next service.
    """
    checkpoint = resolve(settings.model, settings.models_dir)
    family = await to_thread.run_sync(family_of, checkpoint)
    fault: str | None = None
    async with AsyncExitStack() as stack:
        stack.enter_context(
            data_dir.lock(
                settings.data_dir, model=checkpoint.id, weights_sha256=checkpoint.weights_sha256
            )
        )
        db = await stack.enter_async_context(Database.open(settings.database))
        core = Core.of(settings, checkpoint, family, db, engine_command)
        await Housekeeping(core).at_start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(core.engine.run)
            tasks.start_soon(core.cancellation.run)
            if (await core.engine.settled()).error is None:
                await core.scheduler.run_only(run_id)
            fault = core.engine.status.error
            tasks.cancel_scope.cancel()
    if fault is not None:
        raise EngineUnavailable(fault)

"""What is due with time: batches that expire, leases that others lost, runs kept long enough,
uploaded files whose time is over."""

import logging
import time
from collections.abc import Awaitable, Callable

import anyio

from service.core import Core
from service.scheduling.recovery import recover
from storage.errors import StorageError
from storage.owner import is_alive
from storage.retention import Keep, complete, prune

logger = logging.getLogger("mererun.housekeeping")

_PRUNE_SECONDS = 3600.0


class Housekeeping:
    """Nothing here is urgent: what fails is tried again the next time."""

    def __init__(self, core: Core) -> None:
        self._db = core.db
        self._jobs = core.jobs
        self._batches = core.batches
        self._files = core.files
        self._settings = core.settings
        self._owner = core.owner

    async def at_start(self) -> None:
        """See to what an earlier service left, before the first job is admitted.

        Whoever holds the lock of a data folder knows that every other owner in its own database is
        gone, whatever its host was called then.
        """
        alive = is_alive if self._db.shared else _nobody
        await recover(self._jobs, self._settings.data_dir, alive)
        await self._batches.expire(time.time())
        await self._files.settle()

    async def run(self) -> None:
        """Keep looking until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_every, self._settings.housekeeping_seconds, self._due)
            tasks.start_soon(_every, _PRUNE_SECONDS, self._prune)

    async def _due(self) -> None:
        if self._db.shared:
            await recover(self._jobs, self._settings.data_dir, is_alive, me=self._owner)
        await self._batches.expire(time.time())

    async def _prune(self) -> None:
        await self._files.expire(time.time())
        settings = self._settings
        keep = Keep(days=settings.retain_days, size=settings.retain_bytes)
        if keep == Keep():
            await complete(self._db, settings.data_dir)
            return
        pruned = await prune(self._db, settings.data_dir, keep)
        if pruned.runs:
            logger.info("pruned %d runs, %d bytes", pruned.runs, pruned.bytes)


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except (StorageError, OSError) as error:
            logger.error("%s", error)
        await anyio.sleep(seconds)


def _nobody(owner: str) -> bool:
    return False

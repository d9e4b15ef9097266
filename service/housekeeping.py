"""What is due with time: batches that expire, leases that others lost, runs kept long enough."""

import logging
import time

import anyio

from service.core import Core
from service.scheduling.recovery import recover
from storage.errors import StorageError
from storage.owner import is_alive, this_process

logger = logging.getLogger("mererun.housekeeping")


class Housekeeping:
    """Nothing here is urgent: what fails is tried again the next time."""

    def __init__(self, core: Core) -> None:
        self._db = core.db
        self._jobs = core.jobs
        self._batches = core.batches
        self._settings = core.settings

    async def at_start(self) -> None:
        """See to what an earlier service left, before the first job is admitted.

        Whoever holds the lock of a data folder knows that every other owner in its own database is
        gone, whatever its host was called then.
        """
        alive = is_alive if self._db.shared else _nobody
        await recover(self._jobs, self._settings.data_dir, alive)
        await self._batches.expire(time.time())

    async def run(self) -> None:
        """Keep looking until cancelled."""
        while True:
            await anyio.sleep(self._settings.housekeeping_seconds)
            try:
                if self._db.shared:
                    await recover(self._jobs, self._settings.data_dir, is_alive, me=this_process())
                await self._batches.expire(time.time())
            except StorageError as error:
                logger.error("%s", error)


def _nobody(owner: str) -> bool:
    return False

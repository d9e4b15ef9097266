"""The lease of a running job."""

import logging

import anyio

from storage.errors import StorageError
from storage.jobs import Job, Jobs

logger = logging.getLogger("mererun.lease")


class LeaseLost(Exception):
    """Somebody else decides about the job now; nothing may be written for it any more."""


async def keep_lease(jobs: Jobs, job: Job, lease_seconds: float) -> None:
    """Renew the lease every third of its length, until cancelled. Raises LeaseLost.

    Two beats may fail to come before the lease is anybody's: a slow or full disk is not a dead
    service. And who took it needs the database too, which then says so.
    """
    while True:
        await anyio.sleep(lease_seconds / 3)
        try:
            if not await jobs.beat(job, lease_seconds):
                raise LeaseLost(f"the lease of {job.id} was lost")
        except StorageError as error:
            logger.error("%s", error)

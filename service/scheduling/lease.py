"""The lease of a running job."""

import anyio

from storage.jobs import Job, Jobs


class LeaseLost(Exception):
    """Somebody else decides about the job now; nothing may be written for it any more."""


async def keep_lease(jobs: Jobs, job: Job, lease_seconds: float) -> None:
    """Renew the lease every third of its length, until cancelled. Raises LeaseLost, StorageError.

    Two beats may fail to come before the lease is anybody's: a slow disk is not a dead service.
    """
    while True:
        await anyio.sleep(lease_seconds / 3)
        if not await jobs.beat(job, lease_seconds):
            raise LeaseLost(f"the lease of {job.id} was lost")

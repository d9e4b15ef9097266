"""A run that goes on: asked for here, done by the service."""

from collections.abc import Callable
from contextlib import aclosing
from functools import partial

import anyio

from storage import data_dir
from storage.event_log import follow
from storage.jobs import Job
from storage.resumption import why_not_resumable
from tools.inspection.archive import Archive
from tools.inspection.replaying import piece

_LOOK_SECONDS = 2.0


class CannotResume(Exception):
    """One sentence for people that says why, and what to do."""


async def resume(archive: Archive, job: Job, show: Callable[[str], None]) -> Job:
    """Have the run go on, and give its text to `show`, from the beginning and then as it comes.

    Returns the job as it ended. Raises CannotResume, StorageError.
    """
    service = data_dir.holder(archive.data_dir)
    if service is None:
        raise CannotResume(
            f"no service works on {archive.data_dir}; start `mererun serve --model {job.model}` "
            "and resume again"
        )
    why_not = await anyio.to_thread.run_sync(
        partial(
            why_not_resumable,
            job,
            archive.record(job),
            model=service.model,
            weights_sha256=service.weights_sha256,
        )
    )
    if why_not is not None:
        raise CannotResume(why_not)
    # Of services that share a database, only this one has the record.
    home = service.owner if archive.db.shared else None
    if not await archive.jobs.resume(job.id, home=home):
        raise CannotResume(f"{job.id} was resumed or removed by somebody else meanwhile")
    async with aclosing(
        follow(archive.jobs, job, archive.data_dir, quiet_seconds=_LOOK_SECONDS)
    ) as following:
        async for news in following:
            if isinstance(news, Job):
                return news
            for event in news:
                show(piece(event.details()))
            if not news and data_dir.holder(archive.data_dir) is None:
                raise CannotResume(f"the service ended; {job.id} goes on when it is started again")
    raise CannotResume(f"{job.id} was removed")

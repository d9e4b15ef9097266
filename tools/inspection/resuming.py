"""A run that goes on: in the service that works on its data folder, or right here."""

from collections.abc import Callable
from contextlib import aclosing

from models.catalog import CheckpointError
from models.engine.host import EngineUnavailable
from service.resuming import CannotResume, finish_run
from service.settings import Settings
from storage import data_dir, resumption
from storage.data_dir import Holder
from storage.event_log import follow
from storage.jobs import Job
from tools.inspection.archive import Archive
from tools.inspection.replaying import piece

_LOOK_SECONDS = 2.0


async def resume(
    archive: Archive, job: Job, settings: Settings, show: Callable[[str], None]
) -> Job:
    """Have the run go on, and give its text to `show`, from the beginning and then as it comes.

    Returns the job as it ended. Raises CannotResume, StorageError.
    """
    service = data_dir.holder(archive.data_dir)
    if service is not None:
        return await _resume_in(service, archive, job, show)
    try:
        return await finish_run(settings, job.id, lambda queued: _show(archive, queued, show))
    except (CheckpointError, EngineUnavailable) as error:
        raise CannotResume(str(error)) from error


async def _resume_in(
    service: Holder, archive: Archive, job: Job, show: Callable[[str], None]
) -> Job:
    why_not = await resumption.resume(
        archive.db,
        job,
        archive.data_dir,
        owner=service.owner,
        model=service.model,
        weights_sha256=service.weights_sha256,
    )
    if why_not is not None:
        raise CannotResume(why_not)
    ended = await _show(archive, job, show, lambda: data_dir.holder(archive.data_dir) is not None)
    if ended is None:
        raise CannotResume(
            f"the service ended, or the run was removed; if not, {job.id} goes on with the next"
        )
    return ended


async def _show(
    archive: Archive,
    job: Job,
    show: Callable[[str], None],
    goes_on: Callable[[], bool] = lambda: True,
) -> Job | None:
    """Give the run's text to `show` until it has ended; None when it will not before long."""
    async with aclosing(
        follow(archive.jobs, job, archive.data_dir, quiet_seconds=_LOOK_SECONDS)
    ) as following:
        async for news in following:
            if isinstance(news, Job):
                return news
            for event in news:
                show(piece(event.details()))
            if not news and not goes_on():
                return None
    return None

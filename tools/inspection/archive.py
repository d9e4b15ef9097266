"""The runs of one data folder."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from storage.database import Database
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState
from storage.retention import discarded
from storage.run_records import RunRecord
from storage.telemetry import telemetry_of
from storage.verification import StoredRun
from tools.inspection.conversation import contains

_PAGE = 500
_SHOWN_MATCHES = 5


class NoSuchRun(Exception):
    """No run, or more than one, is meant. One sentence for people."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs: `since` is in unix seconds, `text` is searched without regard to case."""

    states: tuple[JobState, ...] = ()
    model: str | None = None
    since: float | None = None
    text: str | None = None


class Archive:
    """Works beside a running service, and on what a crash left. Raises StorageError."""

    def __init__(self, data_dir: Path, db: Database) -> None:
        self.data_dir = data_dir
        self.db = db
        self.jobs = Jobs(db)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, data_dir: Path, database: Path | str, *, to_write: bool = False
    ) -> AsyncGenerator[Self]:
        """Unless `to_write`, nothing is changed. Only a service makes or upgrades a database."""
        async with Database.open_to_read(database) as db:
            if not to_write:
                yield cls(data_dir, db)
                return
        async with Database.open(database) as db:
            yield cls(data_dir, db)

    async def runs(self, wanted: Wanted) -> AsyncIterator[Job]:
        """The wanted runs, newest first."""
        before: str | None = None
        while True:
            page = await self.jobs.list(
                states=wanted.states or None,
                model=wanted.model,
                since=wanted.since,
                before=before,
                limit=_PAGE,
            )
            for job in page:
                if wanted.text is None or contains(self.request(job) or {}, wanted.text):
                    yield job
            if len(page) < _PAGE:
                return
            before = page[-1].id

    async def find(self, beginning: str) -> Job:
        """The one run whose id or message id is or begins so. Raises NoSuchRun."""
        found = await self.jobs.find(beginning)
        whole = [job for job in found if beginning in (job.id, job.message_id)]
        if len(found) == 1 or whole:
            return (whole or found)[0]
        if not found:
            raise NoSuchRun(f"no run begins with {beginning}; see `inspect-runs list`")
        some = ", ".join(job.id for job in found[:_SHOWN_MATCHES])
        more = ", …" if len(found) > _SHOWN_MATCHES else ""
        raise NoSuchRun(f"{len(found)} runs begin with {beginning}: {some}{more}; give more of it")

    async def knows(self, run_id: str) -> bool:
        return await self.jobs.get(run_id) is not None

    async def is_discarded(self, folder: Path) -> bool:
        """Whether the record belongs to no run any more and is being removed."""
        return str(folder.relative_to(self.data_dir)) in await discarded(self.db)

    async def stored(self, run_id: str) -> StoredRun | None:
        """What the database knows of the run now."""
        job = await self.jobs.get(run_id)
        if job is None:
            return None
        return StoredRun(job, await self.jobs.history(run_id), await telemetry_of(self.db, run_id))

    def record(self, job: Job) -> RunRecord:
        return RunRecord.at(self.data_dir / job.record)

    def request(self, job: Job) -> dict[str, Any] | None:
        """The request as recorded; None where that cannot be read."""
        return _readable(self.record(job).request)

    def prompt(self, job: Job) -> dict[str, Any] | None:
        """The prepared prompt as recorded; None where that cannot be read."""
        return _readable(self.record(job).prompt)


def _readable(part: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return part()
    except StorageError:
        return None

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Update,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from storage.database import Database
from storage.job import Job, NewJob, Transition
from storage.job_state import MOVES, JobState
from storage.tables import job_history, jobs
from storage.telemetry import Telemetry, insert_telemetry

__all__ = ["MOVES", "Job", "JobState", "Jobs", "NewJob", "Transition"]

# Written out rather than bound: SQLite matches a partial index to a query by its text.
QUEUED: ColumnElement[bool] = literal_column("jobs.state = 'queued'")
RUNNING: ColumnElement[bool] = literal_column("jobs.state = 'running'")
OPEN: ColumnElement[bool] = literal_column("jobs.state IN ('queued', 'running')")

# The statements of a job's way are built once: building one costs as much as running it. What an
# UPDATE sets are the columns among its parameters.
INSERT = insert(jobs).returning(*jobs.c)
OTHER = jobs.alias("other")
CLAIM = (
    update(jobs)
    .where(
        jobs.c.seq
        == select(jobs.c.seq)
        .where(QUEUED, jobs.c.cancel_requested_at.is_(None))
        .order_by(jobs.c.seq)
        .limit(1)
        .scalar_subquery(),
        ~select(OTHER.c.seq)
        .where(literal_column("other.state = 'running'"), OTHER.c.engine == bindparam("for_engine"))
        .exists(),
    )
    .values(attempt=jobs.c.attempt + 1)
    .returning(*jobs.c)
)
UPDATE_HELD = update(jobs).where(
    jobs.c.id == bindparam("job_id"),
    jobs.c.owner == bindparam("holder"),
    jobs.c.attempt == bindparam("held_attempt"),
    RUNNING,
)
END_HELD = UPDATE_HELD.values(lease_expires_at=None)
END_QUEUED = update(jobs).where(jobs.c.id == bindparam("job_id"), QUEUED)
REQUEST_CANCEL = update(jobs).where(
    jobs.c.id == bindparam("job_id"), OPEN, jobs.c.cancel_requested_at.is_(None)
)
GET = select(jobs).where(jobs.c.id == bindparam("job_id"))


class Jobs:
    """The only place that reads and writes job rows.

    A write that finds the job in another state than it must be in, or held by another owner or
    attempt, touches nothing and says so in its answer. `StorageError` comes from the database.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def insert(self, new: NewJob) -> Job:
        """Add a job to the end of the queue; it survives a power cut once this returns."""
        values = asdict(new) | {"state": JobState.QUEUED, "attempt": 0}
        return _job((await self._db.execute(INSERT, values, durable=True)).mappings().one())

    async def claim(self, owner: str, engine: str, lease_seconds: float) -> Job | None:
        """Take the oldest queued job that nobody asked to cancel, and hold it for `engine`.

        None when there is no such job or `engine` runs one already.
        """
        now = time.time()
        values = {
            "state": JobState.RUNNING,
            "owner": owner,
            "engine": engine,
            "for_engine": engine,
            "started_at": now,
            "lease_expires_at": now + lease_seconds,
        }
        row = (await self._db.execute(CLAIM, values)).mappings().one_or_none()
        return _job(row) if row else None

    async def beat(self, job: Job, lease_seconds: float) -> bool:
        """Hold a claimed job for `lease_seconds` from now; False when the lease was lost."""
        values = _held_as(job) | {"lease_expires_at": time.time() + lease_seconds}
        return await self._changes(UPDATE_HELD, values)

    async def finish(
        self,
        job: Job,
        state: JobState,
        *,
        stop_reason: str | None = None,
        error_type: str | None = None,
        error_message: str | None = None,
        output_tokens: int | None = None,
        telemetry: Telemetry | None = None,
    ) -> bool:
        """End a claimed job, as its holder or, for an orphan, on behalf of a holder that is gone.

        False when the job has moved on since `job` was read, and then nothing is written. Call it
        when the run record is closed: the record, not this row, is what a power cut spares.
        """
        values = _held_as(job) | {
            "state": state,
            "finished_at": time.time(),
            "stop_reason": stop_reason,
            "error_type": error_type,
            "error_message": error_message,
            "output_tokens": output_tokens,
        }
        async with self._db.write() as connection:
            if (await connection.execute(END_HELD, values)).rowcount == 0:
                return False
            if telemetry is not None:
                await insert_telemetry(connection, job.id, telemetry)
        return True

    async def request_cancel(self, id: str, reason: str) -> Job | None:
        """Ask for a queued or running job to be stopped; the first request and its reason stay.

        Returns the job as it is now, whatever its state; None for an unknown id.
        """
        values = {"job_id": id, "cancel_requested_at": time.time(), "cancel_reason": reason}
        await self._changes(REQUEST_CANCEL, values)
        return await self.get(id)

    async def cancel_queued(self, id: str) -> bool:
        """Cancel a job that has not been claimed; False when it is not queued."""
        return await self._end_queued(id, state=JobState.CANCELLED)

    async def interrupt_queued(self, id: str, message: str) -> bool:
        """Interrupt a job that has not been claimed; False when it is not queued."""
        return await self._end_queued(
            id, state=JobState.INTERRUPTED, error_type="api_error", error_message=message
        )

    async def get(self, id: str) -> Job | None:
        """The job, or None for an unknown id."""
        async with self._db.read() as connection:
            row = (await connection.execute(GET, {"job_id": id})).mappings().one_or_none()
        return _job(row) if row else None

    async def find(self, beginning: str) -> list[Job]:
        """Jobs whose id or message id begins so, the newest first."""
        matches = [
            func.substr(column, 1, len(beginning)) == beginning
            for column in (jobs.c.id, jobs.c.message_id)
        ]
        return (await self._select(or_(*matches)))[::-1]

    async def queued(self) -> list[Job]:
        """Every queued job, the next one first."""
        return await self._select(QUEUED)

    async def cancel_requests(self) -> list[Job]:
        """Queued and running jobs that somebody asked to stop, oldest first."""
        return await self._select(OPEN, jobs.c.cancel_requested_at.is_not(None))

    async def orphans(self, is_alive: Callable[[str], bool]) -> list[Job]:
        """Running jobs whose owner is not alive or let the lease expire."""
        now = time.time()
        return [
            job
            for job in await self._select(RUNNING)
            if (job.lease_expires_at or 0) <= now or not is_alive(job.owner or "")
        ]

    async def position(self, id: str) -> int | None:
        """The job's place in the queue, 1 for the next one; None when it is not queued."""
        place = select(jobs.c.seq).where(jobs.c.id == id, QUEUED).scalar_subquery()
        statement = select(func.count()).select_from(jobs).where(QUEUED, jobs.c.seq <= place)
        async with self._db.read() as connection:
            return (await connection.execute(statement)).scalar_one() or None

    async def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; every state is a key."""
        statement = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        async with self._db.read() as connection:
            found = {row[0]: row[1] for row in await connection.execute(statement)}
        return {state: found.get(state, 0) for state in JobState}

    async def history(self, id: str) -> list[Transition]:
        """Every move of the job, from its arrival on; empty for an unknown id."""
        statement = (
            select(job_history).where(job_history.c.job_id == id).order_by(job_history.c.seq)
        )
        async with self._db.read() as connection:
            return [
                Transition(
                    at=row.at,
                    from_state=JobState(row.from_state) if row.from_state else None,
                    to_state=JobState(row.to_state),
                    attempt=row.attempt,
                    owner=row.owner,
                )
                for row in await connection.execute(statement)
            ]

    async def _select(self, *where: ColumnElement[bool]) -> list[Job]:
        statement = select(jobs).where(*where).order_by(jobs.c.seq)
        async with self._db.read() as connection:
            return [_job(row) for row in (await connection.execute(statement)).mappings()]

    async def _changes(self, statement: Update, values: dict[str, Any]) -> bool:
        return (await self._db.execute(statement, values)).rowcount > 0

    async def _end_queued(self, id: str, **values: Any) -> bool:
        return await self._changes(END_QUEUED, {"job_id": id, "finished_at": time.time(), **values})

    # Last in the class: below it, `list` is this method.
    async def list(
        self,
        *,
        states: Iterable[JobState] | None = None,
        model: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[Job]:
        """Jobs, the newest first.

        `since` (included) and `until` (excluded) bound the arrival in unix seconds; `before` is
        the id of a job, and asks for older ones.
        """
        where: list[ColumnElement[bool]] = []
        if states is not None:
            where.append(jobs.c.state.in_([*states]))
        if model is not None:
            where.append(jobs.c.model == model)
        if since is not None:
            where.append(jobs.c.created_at >= since)
        if until is not None:
            where.append(jobs.c.created_at < until)
        if before is not None:
            place = select(jobs.c.seq).where(jobs.c.id == before).scalar_subquery()
            where.append(jobs.c.seq < place)
        statement = select(jobs).where(*where).order_by(jobs.c.seq.desc()).limit(limit)
        async with self._db.read() as connection:
            return [_job(row) for row in (await connection.execute(statement)).mappings()]


def _held_as(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "holder": job.owner, "held_attempt": job.attempt}


def _job(row: RowMapping) -> Job:
    values: dict[str, Any] = {name: row[name] for name in Job.__dataclass_fields__}
    values["state"] = JobState(values["state"])
    return Job(**values)

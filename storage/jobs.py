from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from operator import ge, le
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Update,
    and_,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.exc import IntegrityError

from storage.answers import KeptAnswer, keep_answer
from storage.database import Database
from storage.job import Job, NewJob, Priority, Transition
from storage.job_state import MOVES, JobState
from storage.job_statements import (
    BEAT,
    CANCEL_REQUESTS,
    CLAIM,
    CLAIM_ONE,
    END_ALL_AT_HOME,
    END_HELD,
    END_QUEUED,
    GET,
    IN_ORDER,
    INSERT,
    KEEP_RESULT,
    LEASES,
    QUEUED,
    REQUEST_CANCEL,
    REQUEUE,
    RESUME,
    UPDATE_HELD,
)
from storage.tables import job_history, jobs
from storage.telemetry import Telemetry, replace_telemetry

__all__ = [
    "MOVES",
    "DuplicateKey",
    "Job",
    "JobState",
    "Jobs",
    "NewJob",
    "Priority",
    "Transition",
]


class DuplicateKey(Exception):
    """The idempotency key is that of another run, which is going on or has its answer; or the
    message that this one would continue is continued by such a run."""


class Jobs:
    """The only place that reads and writes job rows.

    A write that finds the job in another state than it must be in, or held by another owner or
    attempt, touches nothing and says so in its answer. `StorageError` comes from the database.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def insert(self, new: NewJob) -> Job:
        """Add a job to the queue; it survives a power cut once this returns.

        Within a priority, API keys take turns. Raises DuplicateKey.
        """
        values = asdict(new) | {
            "state": JobState.QUEUED,
            "attempt": 0,
            "engine_deaths": 0,
            "lost_leases": 0,
            "of_model": new.model,
            "of_priority": new.priority,
            "of_key": new.api_key,
        }
        try:
            return _job((await self._db.execute(INSERT, values, durable=True)).mappings().one())
        except IntegrityError as error:
            # They name the index, or its column, which is in the name of the other one.
            said = str(error.orig)
            if "jobs_idempotency" in said or "continues" in said:
                raise DuplicateKey from error
            raise

    async def claim(
        self,
        owner: str,
        engine: str,
        lease_seconds: float,
        *,
        model: str,
        least: Priority = Priority.BACKGROUND,
        only: str | None = None,
    ) -> Job | None:
        """Take the next queued job of `model` and hold it for `engine`; or the job `only`.

        None when there is none that nobody asked to cancel, of at least that priority and not at
        home in another process, or when `engine` runs one already.
        """
        values = {
            "state": JobState.RUNNING,
            "owner": owner,
            "claimer": owner,
            "engine": engine,
            "for_engine": engine,
            "for_model": model,
            "least_priority": least,
            "lease_seconds": lease_seconds,
        }
        if only is None:
            found = await self._db.execute(CLAIM, values)
        else:
            found = await self._db.execute(CLAIM_ONE, values | {"job_id": only})
        row = found.mappings().one_or_none()
        return _job(row) if row else None

    async def beat(self, job: Job, lease_seconds: float) -> bool:
        """Hold a claimed job for `lease_seconds` from now; False when the lease was lost."""
        return await self._changes(BEAT, _held_as(job) | {"lease_seconds": lease_seconds})

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
        result: bytes | None = None,
        answers: Sequence[KeptAnswer] = (),
    ) -> bool:
        """End a claimed job, as its holder or, for an orphan, on behalf of a holder that is gone.

        `result` is the message as JSON, kept for the job's batch; `answers` have its tokens. False
        when the job has moved on since `job` was read, and then nothing is written. Call it when
        the run record is closed: the record, not this row, is what a power cut spares.
        """
        values = _held_as(job) | {
            "state": state,
            "stop_reason": stop_reason,
            "error_type": error_type,
            "error_message": error_message,
            "output_tokens": output_tokens,
        }

        def end(connection: Connection) -> bool:
            if connection.execute(END_HELD, values).rowcount == 0:
                return False
            replace_telemetry(connection, job.id, telemetry, first=job.attempt == 1)
            if job.batch_id is not None:
                connection.execute(KEEP_RESULT, {"run_id": job.id, "result": result})
            for each in answers:
                keep_answer(connection, job.id, job.api_key, each)
            return True

        return await self._db.run(end)

    async def prepared(self, job: Job, *, input_tokens: int, max_tokens: int) -> bool:
        """Note the size of a claimed job that was queued before it was known."""
        values = _held_as(job) | {"input_tokens": input_tokens, "max_tokens": max_tokens}
        return await self._changes(UPDATE_HELD, values)

    async def requeue(
        self, job: Job, *, engine_died: bool = False, owner_died: bool = False
    ) -> bool:
        """Put a claimed job back, ahead of all of its priority that have not begun; False when it
        has moved on. As its holder, or on behalf of one that is gone."""
        values = _held_as(job) | {
            "state": JobState.QUEUED,
            "engine_died": int(engine_died),
            "owner_died": int(owner_died),
        }
        return await self._changes(REQUEUE, values)

    async def resume(self, id: str, *, home: str | None = None) -> bool:
        """Queue an interrupted or cancelled job again, as background work: of anyone, or of the
        service `home`, where machines that share the database have not its record.

        False when it is in another state, or a batch's, whose results must not change.
        """
        values = {
            "job_id": id,
            "state": JobState.QUEUED,
            "priority": Priority.BACKGROUND,
            "home": home,
        }
        return await self._changes(RESUME, values)

    async def request_cancel(self, id: str, reason: str) -> Job | None:
        """Ask for a queued or running job to be stopped; the first request and its reason stay.

        Returns the job as it is now, whatever its state; None for an unknown id.
        """
        values = {"job_id": id, "cancel_reason": reason}
        await self._changes(REQUEST_CANCEL, values)
        return await self.get(id)

    async def cancel_queued(self, id: str, *, output_tokens: int | None = None) -> bool:
        """Cancel a job that waits, perhaps with some tokens of an earlier attempt; False when it
        is not queued."""
        return await self._end_queued(
            id, state=JobState.CANCELLED, output_tokens=output_tokens or None
        )

    async def interrupt_queued(self, id: str, message: str) -> bool:
        """Interrupt a job that has not been claimed; False when it is not queued."""
        return await self._end_queued(
            id, state=JobState.INTERRUPTED, error_type="api_error", error_message=message
        )

    async def interrupt_all_queued(self, home: str, message: str) -> set[str]:
        """Interrupt every queued job that only `home` may run; returns their ids."""
        values = {
            "at_home": home,
            "state": JobState.INTERRUPTED,
            "error_type": "api_error",
            "error_message": message,
        }
        return set((await self._db.execute(END_ALL_AT_HOME, values)).scalars())

    async def get(self, id: str) -> Job | None:
        """The job, or None for an unknown id."""
        async with self._db.read() as connection:
            row = (await connection.execute(GET, {"job_id": id})).mappings().one_or_none()
        return _job(row) if row else None

    async def find(self, beginning: str) -> list[Job]:
        """Jobs whose id or message id begins so, the newest first."""
        end = beginning + "\U0010ffff"
        matches = [column.between(beginning, end) for column in (jobs.c.id, jobs.c.message_id)]
        return (await self._select(or_(*matches)))[::-1]

    async def with_key(self, api_key: str | None, idempotency_key: str) -> Job | None:
        """The job of an idempotency key: queued, running or succeeded; any other frees its key."""
        found = await self._select(
            func.coalesce(jobs.c.api_key, literal_column("''")) == (api_key or ""),
            jobs.c.idempotency_key == idempotency_key,
            jobs.c.idempotency_key.is_not(None),
            literal_column("jobs.state IN ('queued', 'running', 'succeeded')"),
        )
        return found[0] if found else None

    async def continuation(self, message_id: str) -> Job | None:
        """The job that continues a message in its thread: queued, running or succeeded."""
        found = await self._select(
            jobs.c.continues == message_id,
            literal_column("jobs.state IN ('queued', 'running', 'succeeded')"),
        )
        return found[0] if found else None

    async def queued(self) -> list[Job]:
        """Every queued job, the next one first."""
        statement = select(jobs).where(QUEUED).order_by(*IN_ORDER)
        async with self._db.read() as connection:
            return [_job(row) for row in (await connection.execute(statement)).mappings()]

    async def queued_at_home(self) -> list[Job]:
        """Queued jobs that only one process may run, and those that were asked to stop."""
        return await self._select(
            QUEUED, or_(jobs.c.home.is_not(None), jobs.c.cancel_requested_at.is_not(None))
        )

    async def cancel_requests(self) -> list[Job]:
        """Queued and running jobs that somebody asked to stop, oldest first."""
        async with self._db.read() as connection:
            return [_job(row) for row in (await connection.execute(CANCEL_REQUESTS)).mappings()]

    async def orphans(self, is_alive: Callable[[str], bool]) -> list[Job]:
        """Running jobs whose owner is not alive or let the lease expire."""
        async with self._db.read() as connection:
            return [
                _job(row)
                for row in (await connection.execute(LEASES)).mappings()
                if row["is_over"] or not is_alive(row["owner"])
            ]

    async def position(self, id: str) -> int | None:
        """The job's place in the queue, 1 for the next one; None when it is not queued."""
        me = select(jobs).where(jobs.c.id == id, QUEUED).subquery()
        ahead = or_(
            jobs.c.priority > me.c.priority,
            and_(
                jobs.c.priority == me.c.priority,
                or_(
                    jobs.c.turn < me.c.turn,
                    and_(jobs.c.turn == me.c.turn, jobs.c.seq <= me.c.seq),
                ),
            ),
        )
        statement = (
            select(func.count())
            .select_from(jobs.join(me, jobs.c.model == me.c.model))
            .where(QUEUED, ahead)
        )
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
        return await self._changes(END_QUEUED, {"job_id": id, **values})

    # Last in the class: below it, `list` is this method.
    async def list(
        self,
        *,
        states: Iterable[JobState] | None = None,
        model: str | None = None,
        api_key: str | None = None,
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
        if api_key is not None:
            where.append(jobs.c.api_key == api_key)
        if since is not None:
            where += _in_time(jobs.c.created_at >= since, func.min, ge)
        if until is not None:
            where += _in_time(jobs.c.created_at < until, func.max, le)
        if before is not None:
            place = select(jobs.c.seq).where(jobs.c.id == before).scalar_subquery()
            where.append(jobs.c.seq < place)
        statement = select(jobs).where(*where).order_by(jobs.c.seq.desc()).limit(limit)
        async with self._db.read() as connection:
            return [_job(row) for row in (await connection.execute(statement)).mappings()]


def _in_time(
    arrived: ColumnElement[bool], outermost: Callable[..., Any], compare: Callable[..., Any]
) -> list[ColumnElement[bool]]:
    """`arrived`, and the bound on `seq` that follows from it: without that, those that do not match
    are gone through one by one. The sum keeps SQLite from looking for the bound in that way."""
    bound = select(outermost(jobs.c.seq + 0)).where(arrived).scalar_subquery()
    return [arrived, compare(jobs.c.seq, bound)]


def _held_as(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "holder": job.owner, "held_attempt": job.attempt}


def _job(row: RowMapping) -> Job:
    values: dict[str, Any] = {name: row[name] for name in Job.__dataclass_fields__}
    values["state"] = JobState(values["state"])
    values["priority"] = Priority(values["priority"])
    return Job(**values)

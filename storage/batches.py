import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.batch import EXPIRED, Batch, NewBatch, NewRequest, Outcome, Result
from storage.database import Database
from storage.failpoints import failpoint
from storage.job import NewJob, Priority
from storage.job_state import JobState
from storage.job_statements import NEXT_TURN, OPEN, QUEUED
from storage.jobs import DuplicateKey
from storage.run_records import record_path
from storage.tables import batch_requests, batches, discarded_records, jobs

__all__ = [
    "EXPIRED",
    "Batch",
    "BatchPage",
    "Batches",
    "DuplicateKey",
    "NewBatch",
    "NewRequest",
    "Outcome",
    "Result",
]

# Inserted at a time, within the one transaction: few enough that building the statement's values
# keeps the event loop for some milliseconds only.
ROWS_AT_ONCE = 200
BYTES_AT_ONCE = 1 << 20
# Results read at a time. One may have as much text as a context holds.
RESULTS_AT_ONCE = 100

STOP_OTHERS = update(jobs).where(
    jobs.c.batch_id == bindparam("of_batch"), OPEN, jobs.c.cancel_requested_at.is_(None)
)
# What has never been claimed has no record that would have to be closed.
CANCEL_UNTOUCHED = (
    update(jobs)
    .where(
        jobs.c.batch_id == bindparam("of_batch"),
        QUEUED,
        jobs.c.attempt == 0,
        jobs.c.cancel_requested_at.is_(None),
    )
    .values(state=JobState.CANCELLED, finished_at=bindparam("now"))
)


# Before anything of a batch is written, so that two machines never wait for each other: whoever
# ends one of its runs, too, comes to hold the run first, then the batch.
def _holding(*which: ColumnElement[bool]) -> Select[Any]:
    runs = select(jobs.c.seq).where(jobs.c.batch_id == bindparam("of_batch"), *which)
    # Counted, since there may be 100,000, and nobody wants to see them.
    return select(func.count()).select_from(runs.order_by(jobs.c.seq).with_for_update().subquery())


HOLD_RUNS, HOLD_OPEN_RUNS = _holding(), _holding(OPEN)
NOTE_RECORDS = insert(discarded_records).from_select(
    ["record"],
    # What has never been claimed has none.
    select(jobs.c.record).where(jobs.c.batch_id == bindparam("of_batch"), jobs.c.attempt > 0),
)
NOT_ENDED = batches.c.ended_at.is_(None)


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Some batches, the newest first, and whether there are more in the direction asked for."""

    batches: Sequence[Batch]
    has_more: bool


class Batches:
    """The only place that reads and writes batches and their requests.

    The requests' runs are jobs like any other. That a request's `params` go when its run ends,
    and that a batch ends with its last run, is the work of a trigger. `StorageError` comes from
    the database.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def create(self, new: NewBatch, requests: Iterable[NewRequest]) -> Batch:
        """Queue a batch in one transaction; it survives a power cut once this returns.

        `requests`, `new.total` of them, are taken in a worker thread, a few at a time. The jobs
        are background work that anyone may do, each with the next turn of its key, and without a
        record until claimed. Raises DuplicateKey when the key has a batch of that idempotency key.
        """
        try:
            async with self._db.write(durable=True) as connection:
                await connection.execute(insert(batches), _row_of(new))
                parts = _parts(new, iter(requests), await _next_turn(connection, new))
                while part := await anyio.to_thread.run_sync(next, parts, None):
                    await connection.execute(insert(jobs), part.jobs)
                    await connection.execute(insert(batch_requests), part.requests)
                failpoint("creating batch")
            failpoint("created batch")
        except IntegrityError as error:
            if "batches_idempotency" in str(error.orig):
                raise DuplicateKey from error
            raise
        created = await self.get(new.id, new.api_key)
        assert created is not None
        return created

    async def get(self, id: str, api_key: str | None) -> Batch | None:
        """The batch; None for an unknown id, and for the batch of another key."""
        return await self._one(batches.c.id == id, _of_key(api_key))

    async def with_key(self, api_key: str | None, idempotency_key: str) -> Batch | None:
        """The batch that was created with an idempotency key, as long as it is kept."""
        return await self._one(
            func.coalesce(batches.c.api_key, literal_column("''")) == (api_key or ""),
            batches.c.idempotency_key == idempotency_key,
        )

    async def page(
        self,
        api_key: str | None,
        *,
        limit: int,
        before: str | None = None,
        after: str | None = None,
    ) -> BatchPage:
        """Batches of a key, the newest first: the newest, those right after (older than) the
        batch `after`, or those right before (newer than) the batch `before`. An unknown id has
        nothing on either side."""
        newer = before is not None
        where = [_of_key(api_key)]
        if (cursor := before or after) is not None:
            place = select(batches.c.seq).where(batches.c.id == cursor, _of_key(api_key))
            bound = place.scalar_subquery()
            where.append(batches.c.seq > bound if newer else batches.c.seq < bound)
        order = batches.c.seq.asc() if newer else batches.c.seq.desc()
        statement = select(batches).where(*where).order_by(order).limit(limit + 1)
        async with self._db.read() as connection:
            found = [_batch(row) for row in (await connection.execute(statement)).mappings()]
        shown = found[:limit]
        return BatchPage(shown[::-1] if newer else shown, has_more=len(found) > limit)

    async def counts(self, ids: Sequence[str]) -> dict[str, dict[Outcome, int]]:
        """How many requests of each batch have come to what, now; every outcome is a key."""
        async with self._db.read() as connection:
            return await outcomes(connection, ids)

    async def params(self, job_id: str) -> bytes | None:
        """What a batch's run was asked, as JSON; None once it has ended, or for any other run."""
        statement = select(batch_requests.c.params).where(batch_requests.c.job_id == job_id)
        async with self._db.read() as connection:
            return (await connection.execute(statement)).scalar_one_or_none()

    async def results(self, batch: Batch) -> AsyncIterator[Sequence[Result]]:
        """What has become of each request, in the order of the requests, some at a time.

        No view of the database is held between two pages.
        """
        statement = (
            select(batch_requests, *(jobs.c[name] for name in _OF_JOB))
            .join(jobs, jobs.c.id == batch_requests.c.job_id)
            .where(
                batch_requests.c.batch_id == batch.id, batch_requests.c.place > bindparam("last")
            )
            .order_by(batch_requests.c.place)
            .limit(RESULTS_AT_ONCE)
        )
        last = -1
        while True:
            async with self._db.read() as connection:
                rows = (await connection.execute(statement, {"last": last})).mappings().all()
            if not rows:
                return
            last = rows[-1]["place"]
            yield [_result(row) for row in rows]

    async def cancel(self, batch: Batch, reason: str) -> None:
        """Cancel every request that has not been claimed, and ask for the others to be stopped.

        Of no effect on what has ended or was asked to stop before; nor on a batch that has ended.
        """
        now = time.time()
        async with self._db.write(durable=True) as connection:
            await connection.execute(HOLD_OPEN_RUNS, {"of_batch": batch.id})
            asked = await connection.execute(
                update(batches).where(
                    batches.c.id == bindparam("of_batch"),
                    NOT_ENDED,
                    batches.c.cancel_requested_at.is_(None),
                ),
                {"of_batch": batch.id, "cancel_requested_at": now},
            )
            if asked.rowcount:
                failpoint("cancelling batch")
                await _cancel_requests(connection, batch.id, now, reason)
        failpoint("cancelled batch")

    async def expire(self, now: float) -> int:
        """Cancel the requests of every batch whose time is over at `now`, with the reason
        EXPIRED; returns how many were not asked to stop before."""
        due = select(batches.c.id).where(NOT_ENDED, batches.c.expires_at <= now)
        async with self._db.read() as connection:
            ids = (await connection.execute(due)).scalars().all()
        stopped = 0
        for id in ids:
            async with self._db.write() as connection:
                await connection.execute(HOLD_OPEN_RUNS, {"of_batch": id})
                stopped += await _cancel_requests(connection, id, now, EXPIRED)
        return stopped

    async def delete(self, batch: Batch) -> bool:
        """Delete an ended batch with its runs; their records are noted as discarded. False, and
        nothing is deleted, when it has not ended."""
        async with self._db.write(durable=True) as connection:
            await connection.execute(HOLD_RUNS, {"of_batch": batch.id})
            ended = select(batches.c.ended_at).where(batches.c.id == batch.id)
            if (await connection.execute(ended)).scalar_one_or_none() is None:
                return False
            await connection.execute(NOTE_RECORDS, {"of_batch": batch.id})
            await connection.execute(delete(jobs).where(jobs.c.batch_id == batch.id))
            failpoint("deleting batch")
            deleted = await connection.execute(delete(batches).where(batches.c.id == batch.id))
        return deleted.rowcount > 0

    async def _one(self, *where: ColumnElement[bool]) -> Batch | None:
        async with self._db.read() as connection:
            found = await connection.execute(select(batches).where(*where))
            row = found.mappings().one_or_none()
        return _batch(row) if row else None


async def outcomes(
    connection: AsyncConnection, ids: Sequence[str]
) -> dict[str, dict[Outcome, int]]:
    """How many requests of each batch have come to what, in the view of `connection`."""
    counts = {id: dict.fromkeys(Outcome, 0) for id in ids}
    # Two queries, since the first finds all it needs in an index.
    by_state = (
        select(jobs.c.batch_id, jobs.c.state, func.count())
        .where(jobs.c.batch_id.in_(ids))
        .group_by(jobs.c.batch_id, jobs.c.state)
    )
    for id, state, count in await connection.execute(by_state):
        counts[id][Outcome.of(JobState(state), None)] += count
    expired = (
        select(jobs.c.batch_id, func.count())
        .where(
            jobs.c.batch_id.in_([id for id in ids if counts[id][Outcome.CANCELED]]),
            jobs.c.state == JobState.CANCELLED,
            jobs.c.cancel_reason == EXPIRED,
        )
        .group_by(jobs.c.batch_id)
    )
    for id, count in await connection.execute(expired):
        counts[id][Outcome.EXPIRED] += count
        counts[id][Outcome.CANCELED] -= count
    return counts


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of some requests."""

    jobs: list[dict[str, Any]]
    requests: list[dict[str, Any]]


def _parts(new: NewBatch, requests: Iterator[NewRequest], turn: int) -> Iterator[_Part]:
    folder = record_path(Path(), new.id, new.created_at).parent
    common = asdict(
        NewJob(
            id="",
            message_id="",
            request_id=new.request_id,
            model=new.model,
            streaming=False,
            api_key=new.api_key,
            record="",
            created_at=new.created_at,
            input_tokens=0,
            max_tokens=0,
            priority=Priority.BACKGROUND,
            batch_id=new.id,
        )
    )
    common |= {"state": JobState.QUEUED, "attempt": 0, "engine_deaths": 0, "lost_leases": 0}
    part, size = _Part([], []), 0
    for place, request in enumerate(requests):
        job = {
            **common,
            "id": request.run_id,
            "message_id": request.message_id,
            "record": f"{folder}/{request.run_id}",
            "max_tokens": request.max_tokens,
            "turn": turn + place,
        }
        row = {
            "job_id": request.run_id,
            "batch_id": new.id,
            "place": place,
            "custom_id": request.custom_id,
            "params": request.params,
        }
        part.jobs.append(job)
        part.requests.append(row)
        size += len(request.params)
        if len(part.jobs) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield part
            part, size = _Part([], []), 0
    if part.jobs:
        yield part


async def _next_turn(connection: AsyncConnection, new: NewBatch) -> int:
    values = {"of_model": new.model, "of_priority": Priority.BACKGROUND, "of_key": new.api_key}
    return (await connection.execute(NEXT_TURN, values)).scalar_one()


async def _cancel_requests(
    connection: AsyncConnection, batch_id: str, now: float, reason: str
) -> int:
    values = {"of_batch": batch_id, "cancel_requested_at": now, "cancel_reason": reason}
    cancelled = await connection.execute(CANCEL_UNTOUCHED, values | {"now": now})
    # A moment ago such a one may still have been among those that nobody had claimed.
    asked = await connection.execute(STOP_OTHERS, values)
    return cancelled.rowcount + asked.rowcount


def _row_of(new: NewBatch) -> dict[str, Any]:
    return {name: value for name, value in asdict(new).items() if name in batches.c}


def _of_key(api_key: str | None) -> ColumnElement[bool]:
    return batches.c.api_key.is_not_distinct_from(api_key)


def _batch(row: RowMapping) -> Batch:
    return Batch(**{name: row[name] for name in Batch.__dataclass_fields__})


_OF_JOB = ("request_id", "state", "cancel_reason", "error_type", "error_message")


def _result(row: RowMapping) -> Result:
    return Result(
        custom_id=row["custom_id"],
        request_id=row["request_id"],
        outcome=Outcome.of(JobState(row["state"]), row["cancel_reason"]),
        error_type=row["error_type"],
        error_message=row["error_message"],
        message=row["result"],
    )

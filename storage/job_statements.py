"""What `storage.jobs` asks of the database."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from storage.clock import NOW
from storage.job_state import JobState
from storage.tables import batch_requests, jobs

# Written out rather than bound: SQLite matches a partial index to a query by its text.
QUEUED: ColumnElement[bool] = literal_column("jobs.state = 'queued'")
RUNNING: ColumnElement[bool] = literal_column("jobs.state = 'running'")
OPEN: ColumnElement[bool] = literal_column("jobs.state IN ('queued', 'running')")

# The statements of a job's way are built once: building one costs as much as running it. What an
# UPDATE sets are the columns among its parameters.


def _turn() -> Select[Any]:
    """The next turn of a key: one after its last that waits, but not before anybody else's next.

    Whoever has waited for nothing so far is neither ahead of those who wait nor behind them; and
    what has begun and waits again is ahead of the turns.
    """
    same = (
        QUEUED,
        jobs.c.model == bindparam("of_model"),
        jobs.c.priority == bindparam("of_priority"),
    )
    own = select(func.max(jobs.c.turn) + 1).where(
        *same, jobs.c.api_key.is_not_distinct_from(bindparam("of_key"))
    )
    anybodys = select(func.min(jobs.c.turn)).where(*same, jobs.c.turn >= 0)
    candidates = union_all(own, anybodys, select(literal(0))).subquery()
    return select(func.max(candidates.c[0]))


NEXT_TURN = _turn()
INSERT = insert(jobs).values(turn=NEXT_TURN.scalar_subquery()).returning(*jobs.c)
OTHER = jobs.alias("other")
ENGINE_IS_FREE = ~(
    select(OTHER.c.seq)
    .where(literal_column("other.state = 'running'"), OTHER.c.engine == bindparam("for_engine"))
    .exists()
)
CLAIMABLE = and_(
    QUEUED,
    jobs.c.model == bindparam("for_model"),
    jobs.c.cancel_requested_at.is_(None),
    jobs.c.priority >= bindparam("least_priority"),
    or_(jobs.c.home.is_(None), jobs.c.home == bindparam("claimer")),
)
IN_ORDER = (jobs.c.priority.desc(), jobs.c.turn, jobs.c.seq)


LEASE_END = NOW + bindparam("lease_seconds")


def _claim(next_one: Select[Any]) -> Any:
    return (
        update(jobs)
        # Where machines share the queue, the next one is the first that no other is just taking.
        .where(
            jobs.c.seq == next_one.with_for_update(skip_locked=True).scalar_subquery(),
            ENGINE_IS_FREE,
        )
        .values(attempt=jobs.c.attempt + 1, started_at=NOW, lease_expires_at=LEASE_END)
        .returning(*jobs.c)
    )


CLAIM = _claim(select(jobs.c.seq).where(CLAIMABLE).order_by(*IN_ORDER).limit(1))
CLAIM_ONE = _claim(select(jobs.c.seq).where(CLAIMABLE, jobs.c.id == bindparam("job_id")))
UPDATE_HELD = update(jobs).where(
    jobs.c.id == bindparam("job_id"),
    jobs.c.owner == bindparam("holder"),
    jobs.c.attempt == bindparam("held_attempt"),
    RUNNING,
)
BEAT = UPDATE_HELD.values(lease_expires_at=LEASE_END)
END_HELD = UPDATE_HELD.values(lease_expires_at=None, finished_at=NOW)
FREE = {"owner": None, "engine": None, "lease_expires_at": None, "started_at": None}
REQUEUE = UPDATE_HELD.values(
    **FREE,
    turn=-1,
    engine_deaths=jobs.c.engine_deaths + bindparam("engine_died"),
    lost_leases=jobs.c.lost_leases + bindparam("owner_died"),
)
RESUME = (
    update(jobs)
    .where(
        jobs.c.id == bindparam("job_id"),
        jobs.c.state.in_([JobState.INTERRUPTED, JobState.CANCELLED]),
        jobs.c.batch_id.is_(None),
    )
    .values(
        **FREE,
        **dict.fromkeys(
            [
                "finished_at",
                "cancel_requested_at",
                "cancel_reason",
                "stop_reason",
                "error_type",
                "error_message",
                "output_tokens",
                # It may have been asked again meanwhile, and these be another run's.
                "idempotency_key",
                "continues",
            ]
        ),
        turn=-1,
        engine_deaths=0,
        lost_leases=0,
    )
)
END_ALL_AT_HOME = (
    update(jobs)
    .where(jobs.c.home == bindparam("at_home"), QUEUED)
    .values(finished_at=NOW)
    .returning(jobs.c.id)
)
END_QUEUED = update(jobs).where(jobs.c.id == bindparam("job_id"), QUEUED).values(finished_at=NOW)
REQUEST_CANCEL = (
    update(jobs)
    .where(jobs.c.id == bindparam("job_id"), OPEN, jobs.c.cancel_requested_at.is_(None))
    .values(cancel_requested_at=NOW)
)
LEASES = (
    select(jobs, (jobs.c.lease_expires_at <= NOW).label("is_over"))
    .where(RUNNING)
    .order_by(jobs.c.seq)
)
CANCEL_REQUESTS = (
    select(jobs)
    .where(jobs.c.cancel_requested_at.is_not(None), jobs.c.finished_at.is_(None))
    .order_by(jobs.c.seq)
)
GET = select(jobs).where(jobs.c.id == bindparam("job_id"))
KEEP_RESULT = update(batch_requests).where(batch_requests.c.job_id == bindparam("run_id"))

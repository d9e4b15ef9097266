from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from storage.batch import Batch, Outcome
from storage.batches import outcomes
from storage.database import Database
from storage.job_state import JobState
from storage.tables import batch_requests, batches, job_history

ROWS_AT_ONCE = 500
# Where several machines write, a number that was drawn earlier may be committed later: not by much
# where a move is one short transaction. For the others, as those of a batch's cancellation, all is
# gone through once more at the end.
LATE_NUMBERS = 200

_FIRST = (
    select(func.min(job_history.c.seq))
    .join(batch_requests, batch_requests.c.job_id == job_history.c.job_id)
    .where(batch_requests.c.batch_id == bindparam("of_batch"), batch_requests.c.place == 0)
)
# An outer join, so that the moves are gone through by number, whatever batch they belong to:
# asking for those of the batch alone would look up each of its requests every time.
_MOVES = (
    select(job_history, batch_requests.c.custom_id)
    .outerjoin(
        batch_requests,
        (batch_requests.c.job_id == job_history.c.job_id)
        & (batch_requests.c.batch_id == bindparam("of_batch")),
    )
    .where(job_history.c.seq > bindparam("last"))
    .order_by(job_history.c.seq)
    .limit(ROWS_AT_ONCE)
)
_ENDED_AT = select(batches.c.ended_at).where(batches.c.id == bindparam("of_batch"))


@dataclass(frozen=True, slots=True)
class Move:
    """A request of a batch came into a state; `seq` counts the moves of all runs."""

    seq: int
    custom_id: str
    run_id: str
    state: JobState
    at: float


@dataclass(frozen=True, slots=True)
class News:
    """Moves in order, and how many requests had come to what when last counted.

    `ended_at` is given when a batch has ended and there is no more to tell.
    """

    moves: Sequence[Move]
    counts: dict[Outcome, int]
    ended_at: float | None


class BatchProgress:
    """The moves of a batch's requests after the one numbered `after`, for one reader."""

    def __init__(self, db: Database, batch: Batch, after: int) -> None:
        self._db = db
        self._batch = batch
        self._start: int | None = None
        self._last: int = after
        self._told: set[int] = set()  # where numbers may be late
        self._last_time = not db.shared
        self._counts: dict[Outcome, int] = {}

    async def news(self) -> News | None:
        """What has happened since last asked; None when the batch is no more."""
        while True:
            news, complete = await self._some()
            if news is None or news.moves or complete:
                return news

    async def _some(self) -> tuple[News | None, bool]:
        """Some news, and whether there is no more."""
        of_batch = {"of_batch": self._batch.id}
        async with self._db.read() as connection:
            ended = (await connection.execute(_ENDED_AT, of_batch)).one_or_none()
            if ended is None:
                return None, True
            if self._start is None:
                first: int = (await connection.execute(_FIRST, of_batch)).scalar_one() or 1
                self._start = self._last = max(self._last, first - 1)
            start, again = self._start, LATE_NUMBERS if self._db.shared else 0
            since = {"last": max(start, self._last - again)}
            rows = (await connection.execute(_MOVES, {**of_batch, **since})).all()
            complete = len(rows) < ROWS_AT_ONCE
            if not self._counts or (complete and (rows or ended.ended_at)):
                id = self._batch.id
                self._counts = (await outcomes(connection, [id]))[id]
        moves = [
            Move(row.seq, row.custom_id, row.job_id, JobState(row.to_state), row.at)
            for row in rows
            if row.custom_id is not None and row.seq not in self._told
        ]
        if rows:
            self._last = max(self._last, rows[-1].seq)
        if self._db.shared:
            self._told.update(move.seq for move in moves)
        if complete and ended.ended_at and not self._last_time:
            self._last, self._last_time, complete = start, True, False
        return News(moves, self._counts, ended.ended_at if complete else None), complete

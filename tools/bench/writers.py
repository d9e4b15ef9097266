"""Eight processes that write to one database: whether they get in each other's way."""

import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import select

from models.catalog import Checkpoint
from storage.database import Database
from storage.jobs import Job, Jobs, JobState, NewJob, Priority
from storage.owner import this_process
from storage.tables import job_history
from storage.tables import jobs as jobs_table
from storage.telemetry import Telemetry
from tools.bench.figure import Bar, Figure, p99
from tools.bench.services import Places

_PROCESSES = 8
_KEYS = 3
_MODEL = "bench"
_MOST_WAITING = 100  # in the whole queue, beyond which nothing is added
_MEASURED = Telemetry(0, 0, 0, 0, 0, 1, 1, 1, None, None, None)


def writers(_: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """All of them enqueue, cancel, claim, put back and finish at once, as fast as they can."""
    seconds = 10 if quick else 60
    folder = places.disk / "writers"
    folder.mkdir()
    path = folder / "mererun.db"
    told = _run_all(path, seconds)
    waits = [wait for each in told for wait in each["waits"]]
    errors = Counter(error for each in told for error in each["errors"])
    claims = [tuple(claim) for each in told for claim in each["claims"]]
    moves = anyio.run(_moves, path)
    twice = len(claims) - len(set(claims)) + _claimed_while_running(moves)
    beside = f"{_PROCESSES} processes for {seconds} s, data folder on disk"
    yield Figure(
        "errors of writers",
        sum(errors.values()),
        "",
        f"{beside}; {len(waits)} calls{''.join(f'; {n} x {error}' for error, n in errors.items())}",
        Bar("<=", 0),
    )
    yield Figure(
        "double claims",
        twice,
        "",
        f"of {len(claims)} claims, as the processes and as the history have them",
        Bar("<=", 0),
    )
    yield Figure(
        "claims out of order",
        _out_of_order(moves),
        "",
        "of jobs of one key and priority: a later one claimed before an earlier one",
        Bar("<=", 0),
    )
    yield Figure("writes", len(waits) / seconds, "/s", beside)
    yield Figure("a write, p99", p99(waits), "ms", f"the longest of all {max(waits):.4g} ms")


def _run_all(path: Path, seconds: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tools.bench.writers", str(path), str(seconds)]
    processes = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(_PROCESSES)
    ]
    try:
        return [json.loads(process.communicate(timeout=seconds + 120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()


@dataclass(frozen=True, slots=True)
class _Move:
    """A row of the history, with what its job says."""

    job: int
    key: tuple[str, int]  # API key, priority
    to: str
    attempt: int


async def _moves(path: Path) -> list[_Move]:
    """In the order in which they were committed."""
    statement = (
        select(job_history, jobs_table.c.seq, jobs_table.c.api_key, jobs_table.c.priority)
        .join(jobs_table, jobs_table.c.id == job_history.c.job_id)
        .order_by(job_history.c.seq)
    )
    async with Database.open(path) as db, db.read() as connection:
        return [
            _Move(row.seq_1, (row.api_key, row.priority), row.to_state, row.attempt)
            for row in await connection.execute(statement)
        ]


def _claimed_while_running(moves: list[_Move]) -> int:
    state: dict[int, str] = {}
    found = 0
    for move in moves:
        found += move.to == "running" == state.get(move.job)
        state[move.job] = move.to
    return found


def _out_of_order(moves: list[_Move]) -> int:
    """First claims only: what is queued again goes before all others."""
    latest: defaultdict[tuple[str, int], int] = defaultdict(int)
    found = 0
    for move in moves:
        if move.to == "running" and move.attempt == 1:
            found += move.job < latest[move.key]
            latest[move.key] = max(latest[move.key], move.job)
    return found


@dataclass(slots=True)
class _Writer:
    """One of the processes: it is its own engine."""

    jobs: Jobs
    number: int
    chance: random.Random
    me: str = field(default_factory=this_process)
    held: Job | None = None
    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    claims: list[tuple[str, int]] = field(default_factory=list)
    mine: list[str] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            await self._something()
        if self.held is not None:
            await self._let_go(self.held)

    async def _something(self) -> None:
        if self.held is not None:
            await self._let_go(self.held)
        elif len(self.mine) < _MOST_WAITING // _PROCESSES and self.chance.random() < 0.6:
            await self._enqueue()
        elif self.mine and self.chance.random() < 0.2:
            await self._cancel(self.mine.pop(self.chance.randrange(len(self.mine))))
        else:
            self.mine[:] = self.mine[1:]
            await self._claim()

    async def _enqueue(self) -> None:
        id = f"run_{self.number}_{time.monotonic_ns()}"
        new = NewJob(
            id=id,
            message_id=f"msg{id}",
            request_id=f"req{id}",
            model=_MODEL,
            streaming=True,
            api_key=f"key-{self.chance.randrange(_KEYS)}",
            record=f"runs/2026/01/01/{id}",
            created_at=time.time(),
            input_tokens=1,
            max_tokens=1,
            priority=self.chance.choice([Priority.BACKGROUND, Priority.INTERACTIVE]),
        )
        await self._timed(lambda: self.jobs.insert(new))
        self.mine.append(id)

    async def _cancel(self, id: str) -> None:
        await self._timed(lambda: self.jobs.request_cancel(id, "bench"))
        await self._timed(lambda: self.jobs.cancel_queued(id))

    async def _claim(self) -> None:
        self.held = await self._timed(
            lambda: self.jobs.claim(self.me, f"engine {self.number}", 60, model=_MODEL)
        )
        if self.held is not None:
            self.claims.append((self.held.id, self.held.attempt))

    async def _let_go(self, job: Job) -> None:
        self.held = None
        if self.chance.random() < 0.1:
            kept = await self._timed(lambda: self.jobs.requeue(job))
        else:
            kept = await self._timed(
                lambda: self.jobs.finish(job, JobState.SUCCEEDED, telemetry=_MEASURED)
            )
        if kept is False:
            self.errors.append("a lease was lost")

    async def _timed(self, work: Callable[[], Awaitable[Any]]) -> Any:
        started = time.perf_counter()
        try:
            return await work()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            return None
        finally:
            self.waits.append(1000 * (time.perf_counter() - started))


async def _write(path: Path, seconds: float, number: int) -> None:
    async with Database.open(path) as db:
        writer = _Writer(Jobs(db), number, random.Random(number))
        await writer.run(seconds)
    print(json.dumps({name: getattr(writer, name) for name in ("waits", "errors", "claims")}))


if __name__ == "__main__":
    anyio.run(_write, Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))

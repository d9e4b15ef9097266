"""The table of jobs when many runs are kept: what a claim, a page and a start cost then."""

import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import astuple, fields
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from models.catalog import Checkpoint
from service.scheduling.recovery import recover
from storage.database import Database
from storage.jobs import Jobs, JobState
from storage.telemetry import Telemetry
from tools.bench.figure import Bar, Figure, centre, p99
from tools.bench.services import Places

_Work = Callable[[], Awaitable[Any]]
_MODEL, _RARE_MODEL = "bench", "rare"
_KEYS = 4
_GONE = "1:1.00@gone"
_ME = "2:2.00@here"
_WAITING_AT_START = 64  # as many as wait for an engine, with a connection each, by default
_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED)
_MEASURED = Telemetry(0.1, 0, 0.2, 0.3, 0.5, 100, 20, 100, 1 << 30, 0.2, 0.1)

# Through the schema's own states, so that its triggers write the history.
_QUEUE = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO jobs (id, message_id, request_id, state, model, streaming, api_key, record, created_at,
    input_tokens, max_tokens, priority, turn, home)
SELECT 'run_' || suffix, 'msg_' || suffix, 'req_' || suffix, 'queued',
    CASE WHEN n % 100 = 0 THEN :rare ELSE :model END, 1, 'key-' || (n % :keys),
    'runs/2026/01/01/run_' || suffix, :since + n, 100, 64, 1, n / :keys, :home
FROM (SELECT n, lower(hex(randomblob(12))) AS suffix FROM numbers)
"""
_RUN = """
UPDATE jobs SET state = 'running', owner = home, engine = id, attempt = 1,
    started_at = created_at + 1, lease_expires_at = created_at + 31
"""
_END = """
UPDATE jobs SET finished_at = created_at + 2, lease_expires_at = NULL, output_tokens = 20,
    stop_reason = 'end_turn',
    state = CASE seq % 50 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'succeeded' END
"""
_MEASURE = f"""
INSERT INTO telemetry SELECT id, {", ".join("?" for _ in fields(Telemetry))} FROM jobs
"""


def store(_: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """A database with 100,000 finished jobs."""
    kept, times = (5_000, 20) if quick else (100_000, 100)
    folder = places.disk / "store"
    folder.mkdir()
    anyio.run(_fill, folder / "mererun.db", kept)
    starts = [anyio.run(_start, folder) for _ in range(2 if quick else 5)]
    bench = _Bench(folder / "mererun.db", times, f"{kept} finished jobs in the table")
    yield Figure(
        "start-up: database and recovery",
        max(starts),
        "s",
        f"the slowest of {len(starts)}, {centre(starts)}; an earlier service's running job and "
        f"{_WAITING_AT_START} queued ones are seen to; {bench.beside}",
        Bar("<=", 1),
    )
    yield from anyio.run(bench.figures)


async def _fill(path: Path, count: int) -> None:
    async with Database.open(path):  # makes the schema
        pass
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN")
    connection.execute(_QUEUE, _queued(count, since=time.time() - 2 * count, home=_GONE))
    connection.execute(_RUN)
    connection.execute(_END)
    connection.execute(_MEASURE, astuple(_MEASURED))
    connection.execute("COMMIT")
    connection.close()


def _queued(count: int, *, since: float, home: str | None) -> dict[str, Any]:
    return {
        "count": count,
        "since": since,
        "home": home,
        "model": _MODEL,
        "rare": _RARE_MODEL,
        "keys": _KEYS,
    }


def _queue(path: Path, count: int, home: str | None) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(_QUEUE, _queued(count, since=time.time(), home=home))
    connection.close()


async def _start(folder: Path) -> float:
    """Seconds from the opening of what a killed service left until the first job can come."""
    path = folder / "mererun.db"
    _queue(path, _WAITING_AT_START + 1, _GONE)
    async with Database.open(path) as db:
        await Jobs(db).claim(_GONE, "engine", 30, model=_MODEL)
    started = time.perf_counter()
    async with Database.open(path) as db:
        seen_to = await recover(Jobs(db), folder, lambda _: False)
        seconds = time.perf_counter() - started
    if seen_to != _WAITING_AT_START + 1:
        raise RuntimeError(f"recovery saw to {seen_to} jobs")
    return seconds


class _Bench:
    def __init__(self, path: Path, times: int, beside: str) -> None:
        self._path, self._times, self.beside = path, times, beside

    async def figures(self) -> list[Figure]:
        claims = 10 * self._times
        _queue(self._path, claims + claims // 10, None)
        async with Database.open(self._path) as db:
            jobs = Jobs(db)
            figures = [*await self._claims(jobs, claims)]
            one = (await jobs.list(limit=1))[0]
            since = one.created_at - 50
            figures += [
                await self._page("of runs", jobs.list),
                await self._page("of failed runs", lambda: jobs.list(states=[JobState.FAILED])),
                await self._page("of ended runs", lambda: jobs.list(states=_ENDED)),
                await self._page("of a model's runs", lambda: jobs.list(model=_RARE_MODEL)),
                await self._page("of runs since a time", lambda: jobs.list(since=since)),
                await self._look("the states, counted", jobs.counts),
                await self._look("a run by its id's beginning", lambda: jobs.find(one.id[:12])),
                await self._look("a run by its message", lambda: jobs.find(one.message_id)),
            ]
        return figures

    async def _claims(self, jobs: Jobs, count: int) -> list[Figure]:
        taken: list[float] = []
        vain: list[float] = []
        for _ in range(count):
            started = time.perf_counter()
            job = await jobs.claim(_ME, "engine", 30, model=_MODEL)
            taken.append(1000 * (time.perf_counter() - started))
            assert job is not None
            await jobs.finish(job, JobState.SUCCEEDED, telemetry=_MEASURED)
            vain.append(await _milliseconds(lambda: jobs.claim(_ME, "e", 30, model="none")))
        how = f"median {centre(taken)} of {count}, each job finished after it; {self.beside}"
        noise = f"median {centre(vain)}, in turns with the others: mostly noise"
        return [
            Figure("a claim, p99", p99(taken), "ms", how, Bar("<=", 3)),
            Figure("a claim when nothing waits, p99", p99(vain), "ms", noise),
        ]

    async def _page(self, name: str, work: _Work) -> Figure:
        taken = [await _milliseconds(work) for _ in range(self._times)]
        how = f"the newest 100; median {centre(taken)} of {self._times}; {self.beside}"
        return Figure(f"a page {name}", median(taken), "ms", how, Bar("<=", 20))

    async def _look(self, name: str, work: _Work) -> Figure:
        taken = [await _milliseconds(work) for _ in range(self._times)]
        return Figure(name, median(taken), "ms", f"median {centre(taken)}; {self.beside}")


async def _milliseconds(work: _Work) -> float:
    started = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - started)

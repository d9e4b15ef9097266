"""What the database does for each statement: however many runs are kept, it looks at few of them.

SQLite plans without statistics, so an empty database has the plans of a full one.
"""

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.engine import Engine

from storage.batch_progress import BatchProgress
from storage.batches import Batches, NewBatch, NewRequest
from storage.database import Database
from storage.jobs import Jobs, JobState
from storage.retention import Keep, prune
from storage.tables import jobs as jobs_table
from storage.telemetry import Telemetry, telemetry_of
from tests.storage.conftest import NewJobs

pytestmark = pytest.mark.anyio

ME = "1:1.00@host"
NOTHING = Telemetry(0, 0, 0, 0, 0, 0, 0, 0, None, None, None)
# Those tables grow with every run that is kept. Of a partial index in which only open runs are, all
# may be read.
FULL_SCAN = re.compile(
    r"SCAN (jobs|job_history|telemetry|batch_requests)\b"
    r"(?! USING INDEX jobs_(cancel_requests|queue|turns)\b)"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mererun.db"


@contextmanager
def statements() -> Iterator[dict[str, Any]]:
    """What is sent to databases meanwhile, each with the parameters it had."""
    noted: dict[str, Any] = {}

    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        if not statement.startswith(("PRAGMA", "BEGIN")):
            noted[statement] = parameters[0] if many else parameters

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def full_scans(place: Path, noted: dict[str, Any]) -> list[tuple[str, str]]:
    """Steps of the statements' plans that go through a whole table."""
    assert noted
    connection = sqlite3.connect(place)
    try:
        return [
            (step, statement)
            for statement, parameters in noted.items()
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            if FULL_SCAN.match(step)
        ]
    finally:
        connection.close()


async def test_a_scan_would_be_found(place: Path, db: Database) -> None:
    with statements() as noted:
        async with db.read() as connection:
            await connection.execute(select(jobs_table).where(jobs_table.c.max_tokens == 1))

    assert [step for step, _ in full_scans(place, noted)] == ["SCAN jobs"]


async def test_a_job_goes_its_way_without_a_look_at_all_others(
    place: Path, db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    async def claimed(only: str | None = None) -> Any:
        return await jobs.claim(ME, "engine", 30, model="m", only=only)

    with statements() as noted:
        new = await jobs.insert(new_job(api_key="key", idempotency_key="i", home=ME, continues="m"))
        job = await claimed()
        assert await jobs.beat(job, 30)
        assert await jobs.prepared(job, input_tokens=1, max_tokens=1)
        assert await jobs.requeue(job)
        job = await claimed(only=new.id)
        await jobs.request_cancel(job.id, "why not")
        assert await jobs.cancel_requests()
        assert await jobs.finish(job, JobState.CANCELLED, telemetry=NOTHING)
        assert await jobs.resume(job.id)
        assert await jobs.cancel_queued(job.id)
        other = await jobs.insert(new_job())
        assert await jobs.interrupt_queued(other.id, "the end")

    assert full_scans(place, noted) == []


async def test_jobs_are_found_without_a_look_at_all_others(
    place: Path, db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    job = await jobs.insert(new_job())
    with statements() as noted:
        await jobs.get(job.id)
        await jobs.find("run_")
        await jobs.with_key("key", "i")
        await jobs.continuation("msg_1")
        await jobs.position(job.id)
        await jobs.history(job.id)
        await telemetry_of(db, job.id)
        await jobs.queued()
        await jobs.queued_at_home()
        await jobs.orphans(lambda _: True)

    assert full_scans(place, noted) == []


async def test_a_page_of_jobs_is_read_from_an_index(place: Path, db: Database, jobs: Jobs) -> None:
    with statements() as noted:
        await jobs.list(before="run_1")
        await jobs.list(states=[JobState.FAILED])
        await jobs.list(states=[JobState.FAILED, JobState.CANCELLED])
        await jobs.list(model="m")
        await jobs.list(model="m", states=[JobState.FAILED])
        await jobs.list(since=1.0)
        await jobs.list(until=1.0)

    assert full_scans(place, noted) == []


async def test_states_are_counted_in_an_index(place: Path, db: Database, jobs: Jobs) -> None:
    with statements() as noted:
        await jobs.counts()

    assert [step for step, _ in full_scans(place, noted)] == [
        "SCAN jobs USING COVERING INDEX jobs_state"
    ]


async def test_a_batch_goes_its_way_without_a_look_at_other_runs(
    place: Path, db: Database, jobs: Jobs
) -> None:
    batches, now = Batches(db), time.time()
    new = NewBatch("b", "req", "m", "key", 3, now, now + 60, "i", "sha")
    requests = [NewRequest(f"run_{each}", "msg", f"c{each}", 1, b"{}") for each in range(3)]
    with statements() as noted:
        batch = await batches.create(new, requests)
        await batches.with_key("key", "i")
        await batches.page("key", limit=1, after="b")
        await batches.params("run_0")
        job = await jobs.claim(ME, "engine", 30, model="m")
        assert job is not None
        assert await jobs.finish(job, JobState.SUCCEEDED, telemetry=NOTHING, result=b"{}")
        await batches.cancel(batch, "why not")
        await batches.expire(now + 99)
        await batches.counts(["b"])
        await BatchProgress(db, batch, 0).news()
        assert [each async for each in batches.results(batch)]
        assert await batches.delete(batch)

    assert full_scans(place, noted) == []


async def test_old_runs_are_found_by_their_end(
    place: Path, db: Database, tmp_path: Path, jobs: Jobs, new_job: NewJobs
) -> None:
    await jobs.insert(new_job())
    await jobs.interrupt_queued("run_1", "the end")
    with statements() as noted:
        await prune(db, tmp_path, Keep(days=0))

    assert full_scans(place, noted) == []

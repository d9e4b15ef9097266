"""Rows and records go together, and nothing that goes on is touched."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update

from storage import retention
from storage.database import Database
from storage.errors import StorageError
from storage.jobs import Jobs, JobState, NewJob, Priority
from storage.retention import Keep, Pruned, complete, discarded, prune
from storage.run_records import RunRecord, record_path
from storage.tables import batch_requests, batches, job_history, jobs, telemetry
from storage.telemetry import Telemetry
from storage.verification import record_folders

pytestmark = pytest.mark.anyio

DAY = 86400.0
MEASURED = Telemetry(0.1, 0.2, 0.3, 0.4, 0.7, 5, 3, 5, None, 0.5, 0.01)
ALL = Keep(days=-1)


class Shelf:
    """A data folder, and runs of any age in it."""

    def __init__(self, db: Database, data_dir: Path, new_job: Callable[..., NewJob]) -> None:
        self.db, self.jobs, self.data_dir = db, Jobs(db), data_dir
        self._new_job = new_job
        self._number = 0

    async def run(self, *, days_ago: float = 0, state: JobState | None = None, **more: Any) -> str:
        """A run that arrived so long ago, and ended then unless its state is queued or running."""
        state = state or JobState.SUCCEEDED
        self._number += 1
        id, at = f"run_{self._number:03}", time.time() - days_ago * DAY
        path = record_path(self.data_dir, id, at)
        record = RunRecord.create(self.data_dir, id, at, request={"n": id}, prompt={"ids": []})
        await self.jobs.insert(
            self._new_job(id=id, created_at=at, record=str(path.relative_to(self.data_dir)), **more)
        )
        if state is JobState.QUEUED:
            return id
        job = await self.jobs.claim("1:1.00", f"engine-{id}", 60, model="m", only=id)
        assert job is not None
        record.append([{"event": "claimed"}])
        if state is JobState.RUNNING:
            return id
        record.close(response={}, telemetry={})
        assert await self.jobs.finish(job, state, telemetry=MEASURED)
        await self.change(update(jobs).where(jobs.c.id == id).values(finished_at=at))
        return id

    async def batch(self, id: str, *, ended_days_ago: float | None) -> None:
        ended = None if ended_days_ago is None else time.time() - ended_days_ago * DAY
        values = {"id": id, "total": 2, "created_at": 0.0, "expires_at": 1.0, "ended_at": ended}
        await self.change(insert(batches).values(values))

    async def item(self, batch_id: str, place: int, **more: Any) -> str:
        id = await self.run(batch_id=batch_id, priority=Priority.BACKGROUND, **more)
        values = {"job_id": id, "batch_id": batch_id, "place": place, "custom_id": str(place)}
        await self.change(insert(batch_requests).values(values))
        return id

    async def change(self, statement: Any) -> None:
        await self.db.execute(statement, {})

    async def left(self) -> list[str]:
        """The runs that are left; their rows and records must be the same, and be whole."""
        rows = sorted(job.id for job in await self.jobs.list(limit=1000))
        assert sorted(path.name for path in record_folders(self.data_dir)) == rows
        if not self.db.shared:  # where a note may be another machine's to work off
            assert await discarded(self.db) == set()
        known = select(jobs.c.id)
        for table in (job_history, telemetry, batch_requests):
            assert await self.count(table, table.c.job_id.not_in(known)) == 0
        return rows

    async def count(self, table: Any, *where: Any) -> int:
        async with self.db.read() as connection:
            query = select(func.count()).select_from(table).where(*where)
            return (await connection.execute(query)).scalar_one()

    async def prune(self, keep: Keep, **more: Any) -> Pruned:
        return await prune(self.db, self.data_dir, keep, **more)


@pytest.fixture
def shelf(db: Database, tmp_path: Path, new_job: Callable[..., NewJob]) -> Shelf:
    return Shelf(db, tmp_path, new_job)


async def test_runs_that_ended_longer_ago_go(shelf: Shelf) -> None:
    await shelf.run(days_ago=40)
    await shelf.run(days_ago=31, state=JobState.INTERRUPTED)
    kept = [await shelf.run(days_ago=29), await shelf.run()]
    pruned = await shelf.prune(Keep(days=30))
    assert (pruned.runs, pruned.strays) == (2, 0)
    assert pruned.bytes > 0
    assert await shelf.left() == kept


async def test_without_limits_nothing_goes(shelf: Shelf) -> None:
    kept = [await shelf.run(days_ago=4000), await shelf.run()]
    assert await shelf.prune(Keep()) == Pruned()
    assert await shelf.left() == kept


async def test_the_oldest_go_until_the_rest_takes_no_more_than_asked(shelf: Shelf) -> None:
    runs = [await shelf.run(days_ago=days) for days in (5, 4, 3, 2, 1)]
    each = (await shelf.prune(ALL, dry_run=True)).bytes // 5
    assert await shelf.prune(Keep(size=5 * each)) == Pruned()
    assert await shelf.prune(Keep(size=5 * each - 1)) == Pruned(1, 0, each)
    assert await shelf.left() == runs[1:]
    assert await shelf.prune(Keep(days=3.5, size=3 * each)) == Pruned(1, 0, each)
    assert await shelf.prune(Keep(days=2.5, size=2 * each)) == Pruned(1, 0, each)
    assert await shelf.left() == runs[3:]
    assert await shelf.prune(Keep(size=0)) == Pruned(2, 0, 2 * each)
    assert await shelf.left() == []


async def test_more_runs_than_go_at_once_go(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_CHUNK", 3)
    for number in range(10):
        await shelf.run(days_ago=2 if number < 8 else 0)
    assert (await shelf.prune(Keep(days=1))).runs == 8
    assert len(await shelf.left()) == 2


async def test_what_is_queued_or_running_stays_whatever_its_age_and_size(shelf: Shelf) -> None:
    kept = [
        await shelf.run(days_ago=4000, state=JobState.QUEUED),
        await shelf.run(days_ago=4000, state=JobState.RUNNING),
    ]
    await shelf.run(days_ago=4000)
    assert (await shelf.prune(Keep(days=0, size=0))).runs == 1
    assert await shelf.left() == kept


async def test_a_run_that_is_resumed_meanwhile_stays(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await shelf.run(days_ago=2, state=JobState.CANCELLED)
    await shelf.run(days_ago=2)
    deleted = retention._Prune._delete_rows

    async def resumed_first(self: Any, doomed: Any) -> Any:
        await shelf.jobs.resume(kept)
        return await deleted(self, doomed)

    monkeypatch.setattr(retention._Prune, "_delete_rows", resumed_first)
    assert (await shelf.prune(Keep(days=1))).runs == 1
    assert await shelf.left() == [kept]


async def test_a_batch_goes_as_a_whole_once_its_end_is_old(shelf: Shelf) -> None:
    await shelf.batch("old", ended_days_ago=2)
    await shelf.batch("young", ended_days_ago=0.5)
    await shelf.batch("open", ended_days_ago=None)
    await shelf.item("open", 20, days_ago=3, state=JobState.QUEUED)
    for place, name in enumerate(("old", "young", "open")):
        await shelf.item(name, place, days_ago=3)
        await shelf.item(name, place + 10, days_ago=2.5)
    assert (await shelf.prune(Keep(days=1))).runs == 2
    assert await shelf.left() == ["run_001", "run_004", "run_005", "run_006", "run_007"]
    assert await shelf.count(batches) == 2
    each = (await shelf.prune(Keep(size=0), dry_run=True)).bytes // 2
    assert await shelf.prune(Keep(size=4 * each)) == Pruned(2, 0, 2 * each)
    assert await shelf.prune(Keep(days=0, size=0)) == Pruned()
    assert await shelf.left() == ["run_001", "run_006", "run_007"]
    assert await shelf.count(batches) == 1


async def test_a_dry_run_says_what_would_go_and_changes_nothing(shelf: Shelf) -> None:
    await shelf.batch("young", ended_days_ago=0.5)
    kept = [
        await shelf.item("young", 1, days_ago=3),
        await shelf.item("young", 2, days_ago=1),
        await shelf.run(days_ago=2),
        await shelf.run(),
    ]
    for keep in (Keep(days=1), Keep(size=1), ALL):
        said = await shelf.prune(keep, dry_run=True)
        assert await shelf.left() == kept
        assert said.runs > 0
    assert await shelf.prune(ALL) == said


async def test_folders_that_become_empty_go_and_the_next_run_makes_them_again(
    shelf: Shelf,
) -> None:
    kept = await shelf.run(days_ago=400)
    await shelf.run(days_ago=800)
    await shelf.prune(Keep(days=600))
    assert len(list((shelf.data_dir / "runs").iterdir())) == 1
    await shelf.prune(ALL)
    assert list((shelf.data_dir / "runs").iterdir()) == []
    assert kept not in await shelf.left()
    anew = await shelf.run()
    assert await shelf.left() == [anew]


async def test_the_record_of_a_request_that_never_became_a_run_goes_after_a_day(
    shelf: Shelf,
) -> None:
    begun = RunRecord.create(shelf.data_dir, "begun", 0.0, request={}, prompt={})
    begun.append([{"event": "claimed"}])
    new = RunRecord.create(shelf.data_dir, "new", 0.0, request={}, prompt={})
    old = RunRecord.create(shelf.data_dir, "old", DAY, request={}, prompt={})
    half = record_path(shelf.data_dir, "half", DAY)
    half.mkdir()
    for path in (begun.path, old.path, half):
        os.utime(path, (0, 0))
    pruned = await shelf.prune(Keep())
    assert (pruned.runs, pruned.strays) == (0, 2)
    assert sorted(record_folders(shelf.data_dir)) == sorted([begun.path, new.path])


class Killed(Exception):
    pass


# The deletion of rows, two records, two folders of days and what lies above, the notes.
@pytest.mark.parametrize("at", range(1, 11))
async def test_a_prune_killed_at_any_step_is_made_up_for(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    await shelf.batch("old", ended_days_ago=2)
    await shelf.item("old", 1, days_ago=3)
    await shelf.run(days_ago=400)
    kept = await shelf.run()
    steps = 0

    def step(real: Callable[..., Any], before: Callable[..., Any] | None = None) -> Any:
        def stepped(*arguments: Any, **more: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps < at:
                return real(*arguments, **more)
            if before is not None and steps == at:
                before(*arguments)
            raise Killed

        return stepped

    with monkeypatch.context() as patch:
        half = lambda path: (path / "events.jsonl").unlink()  # noqa: E731
        patch.setattr(retention.shutil, "rmtree", step(retention.shutil.rmtree, half))
        patch.setattr(Path, "rmdir", step(Path.rmdir))
        patch.setattr(retention, "insert", step(retention.insert))
        patch.setattr(shelf.db, "execute", step(shelf.db.execute))
        with suppress(Killed):
            await shelf.prune(Keep(days=1))
    noted = await discarded(shelf.db)
    rows = {job.record for job in await shelf.jobs.list()}
    folders = {str(each.relative_to(shelf.data_dir)) for each in record_folders(shelf.data_dir)}
    assert rows <= folders
    assert folders <= rows | noted
    await shelf.prune(Keep(days=1))
    assert await shelf.left() == [kept]
    assert await shelf.count(batches) == 0
    assert len(list((shelf.data_dir / "runs").glob("*/*/*"))) == 1


async def test_a_record_that_cannot_be_removed_is_told_and_tried_again(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = await shelf.run(days_ago=2)
    await shelf.run(days_ago=2)
    remove = retention.shutil.rmtree

    def refuse(path: Path, **more: Any) -> None:
        if path.name != stuck:
            remove(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(retention.shutil, "rmtree", refuse)
        with pytest.raises(StorageError, match=f"1 records of .* removed, runs/.*/{stuck} among"):
            await shelf.prune(Keep(days=1))
    assert len(list(record_folders(shelf.data_dir))) == 1
    assert await shelf.jobs.list() == []
    await complete(shelf.db, shelf.data_dir)
    assert await shelf.left() == []


@pytest.mark.parametrize("record", ["", "runs", "runs/2026/01/01", "../a/b/c/d", "runs/../../../x"])
async def test_nothing_but_a_record_is_ever_removed(shelf: Shelf, record: str) -> None:
    kept = await shelf.run(days_ago=2)
    await shelf.change(update(jobs).where(jobs.c.id == kept).values(record=record))
    with suppress(StorageError):
        await shelf.prune(Keep(days=1))
    assert [path.name for path in record_folders(shelf.data_dir)] == [kept]


async def test_the_log_of_writes_is_cut_back(shelf: Shelf) -> None:
    if shelf.db.shared:
        pytest.skip("a server has its own")
    for _ in range(3):
        await shelf.run(days_ago=2)
    log = shelf.data_dir / "mererun.db-wal"
    assert log.stat().st_size > 0
    await shelf.prune(Keep(days=1))
    assert log.stat().st_size < 1 << 20


async def test_the_oldest_runs_are_found_by_an_index(shelf: Shelf) -> None:
    if shelf.db.shared:
        pytest.skip("PostgreSQL plans by the numbers of rows")
    async with shelf.db.read() as connection:
        query = retention.oldest((0.0, 0)).compile(
            connection.sync_engine, compile_kwargs={"literal_binds": True}
        )
        plan = [row.detail for row in await connection.execute(text(f"EXPLAIN QUERY PLAN {query}"))]
    assert any("USING INDEX jobs_finished_at" in each for each in plan), plan
    assert not any("TEMP B-TREE" in each for each in plan), plan

"""Several processes on one database, and what they leave when they are killed."""

import time
from collections import defaultdict
from pathlib import Path

import pytest
from sqlalchemy import func, select

from storage.database import Database
from storage.jobs import Jobs, JobState
from storage.owner import is_alive
from storage.run_records import RunRecord
from storage.tables import job_history, jobs, telemetry
from tests.storage.steps import start

pytestmark = pytest.mark.anyio


async def test_eight_workers_two_writers_and_a_slow_reader_share_the_queue(
    place: Path | str, tmp_path: Path
) -> None:
    children = [start("work", tmp_path, 25, place) for _ in range(8)]
    children += [start("insert_and_cancel", tmp_path, 100, place) for _ in range(2)]
    children += [start("read", tmp_path, 2, place)]
    told = [child.communicate(timeout=120) for child in children]
    assert [errors for _, errors in told] == [""] * 11
    claimed = [id for output, _ in told for id in output.split()]
    assert len(claimed) == len(set(claimed)) == 200

    moves: dict[str, list[str]] = defaultdict(list)
    async with Database.open(place) as db, db.read() as connection:
        history = select(job_history, jobs.c.seq.label("arrival")).join(jobs)
        rows = (await connection.execute(history.order_by(job_history.c.seq))).all()
        measured = await connection.execute(select(func.count()).select_from(telemetry))
        assert measured.scalar_one() == 200
    for row in rows:
        moves[row.job_id].append(row.to_state)
    assert [moves[id] for id in claimed] == [["queued", "running", "succeeded"]] * 200
    others = [moves[id] for id in moves if id not in claimed]
    assert all(each in (["queued", "cancelled"], ["queued"]) for each in others)
    # In order of arrival, but for what machines do at the same moment.
    taken = [row.arrival for row in rows if row.to_state == "running"]
    overtaken = [sum(later > each for later in taken[:place]) for place, each in enumerate(taken)]
    assert max(overtaken) <= (len(children) if db.shared else 0)


async def test_a_killed_process_leaves_everything_readable(
    place: Path | str, tmp_path: Path
) -> None:
    for round in range(4):
        child = start("serve", tmp_path, 0, place)
        assert child.stdout is not None
        for _ in range(3):
            child.stdout.readline()
        time.sleep(round * 0.003)  # noqa: ASYNC251 - the kill lands elsewhere in each round
        child.kill()
        child.communicate()

    async with Database.open(place) as db:
        if not db.shared:
            async with db.read() as connection:
                check = await connection.exec_driver_sql("PRAGMA integrity_check")
                assert check.scalar_one() == "ok"
        queue = Jobs(db)
        found = await queue.list(limit=1000)
        assert len(found) >= 12
        for job in found:
            record = RunRecord.at(tmp_path / job.record)
            assert record.request() == {"ask": "?"}
            assert record.prompt() == {"tokens": [1]}
            events = record.events()
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
            if job.state == JobState.SUCCEEDED:
                assert record.closed
                assert len(events) == 20
        for orphan in await queue.orphans(is_alive):
            assert await queue.finish(orphan, JobState.INTERRUPTED)
        for waiting in await queue.queued():
            assert await queue.interrupt_queued(waiting.id, "the service stopped")
        counts = await queue.counts()
        assert counts[JobState.RUNNING] == counts[JobState.QUEUED] == 0

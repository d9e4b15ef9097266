"""Several processes on one database, and what they leave when they are killed."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.database import Database
from storage.jobs import Jobs, JobState
from storage.owner import is_alive
from storage.run_records import RunRecord

CHILDREN = str(Path(__file__).with_name("children.py"))


def start(name: str, folder: Path, number: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, CHILDREN, name, str(folder), str(number)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_workers_two_writers_and_a_slow_reader_share_the_queue(tmp_path: Path) -> None:
    children = [start("work", tmp_path, 50) for _ in range(8)]
    children += [start("insert", tmp_path, 200) for _ in range(2)]
    children += [start("read", tmp_path, 2)]
    told = [child.communicate(timeout=120) for child in children]
    assert [errors for _, errors in told] == [""] * 11
    claimed = [id for output, _ in told for id in output.split()]
    assert len(claimed) == len(set(claimed)) == 400

    db = sqlite3.connect(tmp_path / "mererun.db")
    per_job = "SELECT group_concat(to_state) FROM job_history GROUP BY job_id"
    assert {moves for (moves,) in db.execute(per_job)} == {"queued,running,succeeded"}
    assert db.execute("SELECT count(*) FROM telemetry").fetchone() == (400,)
    db.close()


@pytest.mark.anyio
async def test_a_killed_process_leaves_everything_readable(tmp_path: Path) -> None:
    for round in range(4):
        child = start("serve", tmp_path)
        assert child.stdout is not None
        for _ in range(3):
            child.stdout.readline()
        time.sleep(round * 0.003)  # noqa: ASYNC251 - the kill lands elsewhere in each round
        child.kill()
        child.communicate()

    async with Database.open(tmp_path / "mererun.db") as db:
        async with db.read() as connection:
            check = await connection.exec_driver_sql("PRAGMA integrity_check")
            assert check.scalar_one() == "ok"
        jobs = Jobs(db)
        found = await jobs.list(limit=1000)
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
        for orphan in await jobs.orphans(is_alive):
            assert await jobs.finish(orphan, JobState.INTERRUPTED)
        for waiting in await jobs.queued():
            assert await jobs.interrupt_queued(waiting.id, "the service stopped")
        counts = await jobs.counts()
        assert counts[JobState.RUNNING] == counts[JobState.QUEUED] == 0

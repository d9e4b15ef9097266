"""What the tests let other processes do: `python children.py <name> <folder> [number] [place]`.

`place` is that of the database, which is in the folder otherwise.
"""

import resource
import signal
import sys
import time
import uuid
from pathlib import Path

import anyio

from storage.data_dir import lock
from storage.database import Database
from storage.errors import StorageError
from storage.job_state import JobState
from storage.jobs import Jobs, NewJob
from storage.owner import this_process
from storage.run_records import RunRecord, record_path
from storage.tables import jobs as table
from storage.telemetry import Telemetry

NOTHING = Telemetry(0, 0, 0, 0, 0, 0, 0, 0, None, None, None)


def place(folder: Path) -> Path | str:
    return sys.argv[4] if len(sys.argv) > 4 else folder / "mererun.db"


def a_new_job(folder: Path) -> NewJob:
    id, now = f"run_{uuid.uuid4().hex}", time.time()
    return NewJob(
        id=id,
        message_id="msg",
        request_id="req",
        model="m",
        streaming=False,
        api_key=None,
        record=str(record_path(folder, id, now).relative_to(folder)),
        created_at=now,
        input_tokens=1,
        max_tokens=1,
    )


async def insert(folder: Path, count: int) -> None:
    async with Database.open(place(folder)) as db:
        for _ in range(count):
            await Jobs(db).insert(a_new_job(folder))


async def insert_and_cancel(folder: Path, count: int) -> None:
    """Insert `count` jobs, and between them some that are cancelled at once."""
    async with Database.open(place(folder)) as db:
        jobs = Jobs(db)
        for number in range(count):
            await jobs.insert(a_new_job(folder))
            if number % 4 == 0:
                job = await jobs.insert(a_new_job(folder))
                await jobs.request_cancel(job.id, "not needed")
                await jobs.cancel_queued(job.id)


async def work(folder: Path, count: int) -> None:
    """Claim and finish `count` jobs, naming each on a line."""
    me = this_process()
    async with Database.open(place(folder)) as db:
        jobs = Jobs(db)
        while count:
            job = await jobs.claim(me, engine=me, lease_seconds=30, model="m")
            if job is None:
                await db.changed()
                continue
            assert await jobs.finish(job, JobState.SUCCEEDED, telemetry=NOTHING)
            print(job.id)
            count -= 1


async def read(folder: Path, seconds: int) -> None:
    """Hold one read for `seconds`, in which the view does not change."""
    async with Database.open(place(folder)) as db, db.read() as connection:
        before = (await connection.execute(table.select())).all()
        await anyio.sleep(seconds)
        assert (await connection.execute(table.select())).all() == before


async def serve(folder: Path, _: int) -> None:
    """Take jobs from request to answer until killed, naming each finished one on a line."""
    me = this_process()
    async with Database.open(place(folder)) as db:
        jobs = Jobs(db)
        while True:
            new = a_new_job(folder)
            record = RunRecord.create(
                folder, new.id, new.created_at, request={"ask": "?"}, prompt={"tokens": [1]}
            )
            await jobs.insert(new)
            job = await jobs.claim(me, engine=me, lease_seconds=30, model="m")
            assert job is not None
            record = RunRecord.at(folder / job.record)
            for number in range(20):
                record.append([{"type": "tokens", "ids": [number] * 50}])
            record.close(response={"answer": "!"}, telemetry={})
            assert await jobs.finish(job, JobState.SUCCEEDED, telemetry=NOTHING)
            print(job.id, flush=True)


async def hold_job(folder: Path, lease_seconds: int) -> None:
    """Claim a job, name it on a line, and let its lease be until killed."""
    async with Database.open(place(folder)) as db:
        job = await Jobs(db).claim("1:1.00@elsewhere", "engine", lease_seconds, model="m")
        assert job is not None
        print(job.id, flush=True)
        await anyio.sleep_forever()


async def fill(folder: Path, file_limit: int) -> None:
    """Write until nothing more fits; 0 means that the disk itself is the limit."""
    async with Database.open(place(folder)) as db:
        jobs = Jobs(db)
        first = await jobs.insert(a_new_job(folder))
        if file_limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
        try:
            while True:
                await jobs.insert(a_new_job(folder))
        except StorageError as error:
            print(error)
        if await jobs.get(first.id) == first:
            print("the first job is as it was")
        big = {"text": "x" * 4_000_000}
        try:
            RunRecord.create(folder, "big", 0, request=big, prompt={})
        except StorageError as error:
            print(error)
        if not record_path(folder, "big", 0).exists():
            print("no record is left")


async def hold(folder: Path, _: int) -> None:
    """Lock the data folder until killed."""
    with lock(folder):
        print("locked", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    anyio.run(globals()[sys.argv[1]], Path(sys.argv[2]), number)

"""What holds of a queue on PostgreSQL alone: a server that comes and goes, machines that share."""

import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import asyncpg
import pytest
from sqlalchemy import insert, make_url, text

import storage.postgres
from storage.batches import Batch, Batches, NewBatch, NewRequest
from storage.database import Database
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState
from storage.tables import jobs as table
from tests.storage.conftest import NewJobs
from tests.storage.steps import cancelled_after, row, start
from tests.support.postgres import Server

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(postgres: Server) -> str:
    return postgres.empty_queue()


@pytest.fixture
def server(postgres: Server) -> Iterator[Server]:
    """One that the test may stop."""
    yield postgres
    postgres.stop()
    postgres.start()


async def refusal(url: str) -> str:
    with pytest.raises(StorageError) as refused:
        async with Database.open(url):
            pass
    return str(refused.value)


async def test_processes_can_make_the_schema_together(postgres: Server, tmp_path: Path) -> None:
    place = postgres.new_database()
    children = [start("insert", tmp_path, 1, place) for _ in range(4)]
    assert [child.communicate()[1] for child in children] == [""] * 4
    async with Database.open_to_read(place) as db:
        assert (await Jobs(db).counts())[JobState.QUEUED] == 4


async def test_only_its_schema_can_be_opened_to_read(postgres: Server) -> None:
    place = postgres.new_database()
    with pytest.raises(StorageError, match="has no schema yet; start `mererun serve` once"):
        async with Database.open_to_read(place):
            pass


async def test_a_newer_database_is_refused_by_name(postgres: Server) -> None:
    place = postgres.new_database()
    async with Database.open(place) as db, db.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert await refusal(place) == (
        f"the database {make_url(place).database} was written by a newer mererun (schema 9999); "
        "upgrade mererun or use another database"
    )


async def test_a_wrong_password_is_told_and_not_printed(postgres: Server) -> None:
    postgres.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    said = await refusal(postgres.url("postgres", user="guarded:wrong"))
    assert said == ("the database postgres refused the user: see that name and password are right")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://me:secret@host:port/mererun",
        "postgresql+asyncpg://me:secret@host",
        "postgresql://me:secret@host/mererun",
        "mysql://me:secret@host/mererun",
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    assert await refusal(url) == (
        "the database must be a file or postgresql+asyncpg://user@host:5432/database"
    )


async def test_what_cannot_be_opened_is_one_sentence_that_says_what_to_do(
    postgres: Server, tmp_path: Path
) -> None:
    assert await refusal(postgres.url("missing")) == (
        "the database missing does not exist on its server; make it with `createdb`"
    )
    unreachable = "cannot be reached: see that its server runs and that host and port are right"
    nowhere = f"postgresql+asyncpg://me@/mererun?host={tmp_path}"
    assert await refusal(nowhere) == (
        f"the database mererun {unreachable} (No such file or directory)"
    )
    closed = "postgresql+asyncpg://me:secret@127.0.0.1:1/mererun"
    assert await refusal(closed) == f"the database mererun {unreachable} (Connection refused)"
    assert await refusal(f"{nowhere}&colour=red") == (
        "the URL of the database mererun is not understood: "
        "connect() got an unexpected keyword argument 'colour'"
    )


async def test_without_its_extra_one_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.database.find_spec", lambda _: None)
    assert await refusal("postgresql+asyncpg://me@host/mererun") == (
        "a database on PostgreSQL needs an extra: pip install 'mererun[postgres]'"
    )


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_that_comes_back_is_used_again(
    server: Server, db: Database, new_job: NewJobs, how: str
) -> None:
    jobs = Jobs(db)
    await jobs.insert(new_job(id="a"))
    await db.changed()
    getattr(server, how)()
    for attempt in (jobs.counts, lambda: jobs.insert(new_job(id="b")), db.changed, db.changed):
        with pytest.raises(StorageError, match="cannot be reached"):
            await attempt()
    server.start()
    await jobs.insert(new_job(id="c"))
    assert [job.id for job in await jobs.queued()] == ["a", "c"]
    await db.changed()
    async with anyio.create_task_group() as group:
        group.start_soon(db.changed)
        await jobs.request_cancel("a", "stop")


@pytest.mark.parametrize("asked", ["execute", "fetchrow"])
async def test_a_connection_that_is_just_being_given_up_is_told_as_lost(
    place: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    async def given_up(*_: object, **__: object) -> None:
        raise asyncpg.InternalClientError("another operation is in progress")

    monkeypatch.setattr(storage.postgres, "QUIET_SECONDS", 0)
    async with Database.open(place) as db:
        await db.changed()
        with monkeypatch.context() as patched:
            patched.setattr(asyncpg.Connection, asked, given_up)
            await db.changed()
            with pytest.raises(StorageError, match="the connection to its server was lost"):
                async with db.write() as connection:
                    await connection.execute(insert(table))
        assert await Jobs(db).get("unknown") is None
        await db.changed()


async def test_cancelled_callers_leave_no_transaction_and_no_lock(
    db: Database, postgres: Server, new_job: NewJobs
) -> None:
    await Jobs(db).insert(new_job(id="a"))

    async def write() -> None:
        async with db.write() as connection:
            await connection.execute(text("UPDATE jobs SET message_id = 'x'"))
            await connection.execute(insert(table).values(row("b")))

    async def read() -> None:
        async with db.read() as connection:
            await connection.execute(text("SELECT * FROM jobs"))

    for steps in range(1, 60):
        await cancelled_after(steps, write)
        await cancelled_after(steps, read)
        async with db.write() as connection:
            await connection.execute(text("DELETE FROM jobs WHERE id = 'b'"))
    with anyio.fail_after(10):
        while "idle in transaction" in postgres.sql("SELECT state FROM pg_stat_activity"):  # noqa: ASYNC110
            await anyio.sleep(0.05)


async def test_leases_go_by_the_servers_clock(
    db: Database, new_job: NewJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, now = Jobs(db), time.time()
    await jobs.insert(new_job())
    monkeypatch.setattr("time.time", lambda: now + 86_400)
    job = await jobs.claim("1:1.00@fast", "fast", 30, model="m")
    assert job is not None
    assert job.started_at is not None
    assert now <= job.started_at <= now + 60
    assert await jobs.beat(job, 30)
    assert await jobs.orphans(lambda _: True) == []


async def test_what_a_killed_machine_held_goes_on_elsewhere_once_its_lease_is_over(
    db: Database, place: str, tmp_path: Path, new_job: NewJobs
) -> None:
    jobs = Jobs(db)
    await jobs.insert(new_job(id="a"))
    child = start("hold_job", tmp_path, 1, place)
    assert child.stdout is not None
    assert child.stdout.readline() == "a\n"
    child.kill()
    child.communicate()
    held = await jobs.get("a")
    assert held is not None
    orphans: list[Job] = []
    with anyio.fail_after(30):
        while not orphans:
            # Nobody here knows whether a process there lives.
            orphans = await jobs.orphans(lambda _: True)
    assert orphans == [held]
    assert await jobs.requeue(held, owner_died=True)
    taken = await jobs.claim("2:1.00@here", "here", 30, model="m")
    assert taken is not None
    assert (taken.id, taken.attempt, taken.lost_leases) == ("a", 2, 1)
    assert not await jobs.beat(held, 30)
    assert not await jobs.finish(held, JobState.SUCCEEDED)
    assert await jobs.finish(taken, JobState.SUCCEEDED)


async def test_a_job_that_another_machine_is_taking_is_passed_over(
    db: Database, new_job: NewJobs
) -> None:
    jobs = Jobs(db)
    await jobs.insert(new_job(id="a"))
    await jobs.insert(new_job(id="b"))
    async with db.write() as connection:
        await connection.execute(text("SELECT 1 FROM jobs WHERE id = 'a' FOR UPDATE"))
        job = await jobs.claim("me", "here", 30, model="m")
        assert job is not None
        assert job.id == "b"


async def test_a_batch_ends_though_its_last_two_jobs_end_at_the_same_time(
    db: Database, postgres: Server, new_job: NewJobs
) -> None:
    jobs = Jobs(db)
    async with db.write() as connection:
        await connection.execute(
            text("INSERT INTO batches (id, total, created_at, expires_at) VALUES ('x', 2, 1, 2)")
        )
    for id in "ab":
        await jobs.insert(new_job(id=id, batch_id="x"))
    first = await jobs.claim("me", "e1", 30, model="m")
    second = await jobs.claim("me", "e2", 30, model="m")
    assert first is not None
    assert second is not None
    async with anyio.create_task_group() as group, db.write() as connection:
        await connection.execute(
            text(
                "UPDATE jobs SET state = 'failed', lease_expires_at = NULL, finished_at = 3 "
                "WHERE id = 'a'"
            )
        )
        group.start_soon(jobs.finish, second, JobState.SUCCEEDED)
        while not postgres.sql("SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    async with db.read() as connection:
        ended = await connection.execute(text("SELECT ended_at IS NOT NULL FROM batches"))
        assert ended.scalar_one()


async def test_a_claim_that_finds_nothing_wakes_nobody(db: Database, new_job: NewJobs) -> None:
    jobs = Jobs(db)
    await db.changed()
    assert await jobs.claim("me", "here", 30, model="m") is None
    with anyio.move_on_after(0.5) as quiet:
        await db.changed()
    assert quiet.cancelled_caught


async def test_a_batch_is_cancelled_while_its_runs_end(db: Database, new_job: NewJobs) -> None:
    batches = Batches(db)
    for number in range(10):
        new = NewBatch(f"b{number}", "req", "m", None, 8, created_at=1.0, expires_at=2.0)
        ids = [f"{number}.{place}" for place in range(8)]
        batch = await batches.create(new, (NewRequest(id, id, id, 8, b"{}") for id in ids))
        held = [await Jobs(db).claim("me", f"e{it}", 30, model="m") for it in range(4)]
        async with anyio.create_task_group() as group:
            for job in held:
                assert job is not None
                group.start_soon(Jobs(db).finish, job, JobState.SUCCEEDED)
            group.start_soon(batches.cancel, batch, "enough")
            group.start_soon(batches.expire, 10.0)
        ended = await batches.get(batch.id, None)
        assert ended is not None
        assert ended.ended_at is not None
        deleted: list[bool] = []

        async def delete(batch: Batch, deleted: list[bool] = deleted) -> None:
            deleted.append(await batches.delete(batch))

        async with anyio.create_task_group() as group:
            group.start_soon(delete, ended)
            group.start_soon(delete, ended)
        assert sorted(deleted) == [False, True]

"""What holds of a database of either kind."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from storage.database import Database
from storage.errors import StorageError
from storage.jobs import Jobs
from storage.tables import jobs as table
from storage.tables import metadata
from tests.storage.conftest import NewJobs
from tests.storage.steps import cancelled_after, row

pytestmark = pytest.mark.anyio


async def test_a_write_that_fails_leaves_nothing(db: Database) -> None:
    async def fail() -> None:
        async with db.write() as connection:
            await connection.execute(insert(table).values(row()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with db.read() as connection:
        assert (await connection.execute(select(table))).all() == []


async def test_a_read_sees_nothing_that_is_committed_meanwhile(db: Database) -> None:
    async with db.read() as connection:
        assert (await connection.execute(select(table))).all() == []
        await db.execute(insert(table), row())
        assert (await connection.execute(select(table))).all() == []
    async with db.read() as connection:
        assert len((await connection.execute(select(table))).all()) == 1


async def test_a_read_cannot_write(db: Database) -> None:
    with pytest.raises(StorageError, match="read-only"):
        async with db.read() as connection:
            await connection.execute(insert(table).values(row()))


async def test_a_cancelled_writer_leaves_nothing(db: Database) -> None:
    async def write() -> None:
        async with db.write() as connection:
            await connection.execute(insert(table).values(row()))
            await connection.execute(select(table))
            await connection.execute(delete(table))

    for steps in range(1, 60):
        await cancelled_after(steps, write)
    async with db.write() as connection:
        assert (await connection.execute(select(table))).all() == []
        await connection.execute(insert(table).values(row()))


async def test_a_single_statement_ends_though_its_caller_is_cancelled(db: Database) -> None:
    async def add() -> None:
        await db.execute(insert(table), row())

    for steps in range(1, 40):
        await cancelled_after(steps, add)
        async with db.write() as connection:
            await connection.execute(delete(table))
    await add()


async def test_work_is_done_as_a_whole_or_not_at_all(db: Database) -> None:
    def add(*ids: str) -> Callable[[Connection], None]:
        def work(connection: Connection) -> None:
            for id in ids:
                connection.execute(insert(table), row(id))

        return work

    with pytest.raises(IntegrityError):
        await db.run(add("a", "b", "a"))
    for steps in range(1, 40):
        await cancelled_after(steps, lambda: db.run(add("a", "b")))
        async with db.write() as connection:
            assert (await connection.execute(delete(table))).rowcount in (0, 2)
    await db.run(add("a", "b"))
    async with db.read() as connection:
        assert len((await connection.execute(select(table))).all()) == 2


async def test_who_waits_for_a_change_hears_of_one_by_another_connection(
    db: Database, place: Path | str, new_job: NewJobs
) -> None:
    await db.changed()
    with anyio.move_on_after(0.3) as quiet:
        await db.changed()
    assert quiet.cancelled_caught
    async with Database.open(place) as other, anyio.create_task_group() as group:
        group.start_soon(db.changed)
        await Jobs(other).insert(new_job())


async def test_a_change_is_not_lost_between_two_waits(db: Database, new_job: NewJobs) -> None:
    jobs = Jobs(db)
    await db.changed()
    for id in "abc":
        await jobs.insert(new_job(id=id))
        with anyio.fail_after(2):
            await db.changed()
        await jobs.request_cancel(id, "stop")
        with anyio.fail_after(2):
            await db.changed()


async def test_the_tables_are_what_the_migrations_make(db: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        # Indexes and constraints live in the migrations alone.
        found = compare_metadata(MigrationContext.configure(connection), metadata)
        return [it for it in found if not str(it[0]).endswith(("_index", "_constraint"))]

    async with db.read() as connection:
        assert await connection.run_sync(differences) == []

"""What holds of a SQLite file alone."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, select, text

from storage.database import Database
from storage.errors import StorageError
from storage.sqlite import WRITES_IN_LOG
from storage.tables import jobs as table
from tests.storage.steps import CHILDREN, cancelled_after, row, start

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mererun.db"


async def pragma(connection, name: str) -> object:
    return (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()


async def settings_of(connection) -> dict[str, object]:
    names = ["busy_timeout", "foreign_keys", "synchronous", "query_only", "journal_mode"]
    return {name: await pragma(connection, name) for name in names}


EXPECTED = {
    "busy_timeout": 10_000,
    "foreign_keys": 1,
    "synchronous": 1,
    "query_only": 0,
    "journal_mode": "wal",
}


async def test_every_connection_has_its_settings(db: Database) -> None:
    async with db.write() as writer, db.read() as one, db.read() as two, db.read() as three:
        assert await settings_of(writer) == EXPECTED
        for reader in (one, two, three):
            assert await settings_of(reader) == EXPECTED | {"query_only": 1}


async def test_a_connection_opened_after_a_lost_one_has_its_settings(db: Database) -> None:
    async def lose() -> None:
        async with db.write() as connection:
            await connection.invalidate()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lose()
    async with db.write(durable=True) as connection:
        assert await settings_of(connection) == EXPECTED | {"synchronous": 2}


async def test_only_durable_commits_wait_for_the_disk(db: Database) -> None:
    levels: list[object] = []
    for durable in (True, False, True, False):
        async with db.write(durable) as connection:
            levels.append(await pragma(connection, "synchronous"))
    assert levels == [2, 1, 2, 1]


async def test_a_cancelled_writer_leaves_no_transaction_behind(db: Database) -> None:
    async def write() -> None:
        async with db.write(durable=True) as connection:
            await connection.execute(insert(table).values(row()))
            await connection.execute(select(table))
            await connection.execute(delete(table))

    other = sqlite3.connect(db.path, timeout=5, isolation_level=None)
    for steps in range(1, 120):
        await cancelled_after(steps, write)
        other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
        other.execute("ROLLBACK")
        async with db.write(durable=True) as connection:
            assert await pragma(connection, "synchronous") == 2
        async with db.write() as connection:
            assert await pragma(connection, "synchronous") == 1
    other.close()


async def test_cancelled_readers_leave_no_view_open(db: Database) -> None:
    async def read() -> None:
        async with db.read() as connection:
            await connection.execute(select(table))

    for steps in range(1, 60):
        await cancelled_after(steps, read)
    async with db.read(), db.read(), db.read(), db.read() as connection:
        await connection.execute(select(table))
    async with db.write() as connection:
        await connection.execute(insert(table).values(row()))
    other = sqlite3.connect(db.path, timeout=5)
    busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    assert not busy


async def test_closing_empties_the_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "mererun.db"
    async with Database.open(path) as db, db.write() as connection:
        await connection.execute(insert(table).values(row()))
    assert not [name for name in os.listdir(tmp_path) if "-wal" in name]


async def test_who_watches_takes_the_log_into_the_file(db: Database, tmp_path: Path) -> None:
    for number in range(WRITES_IN_LOG):
        await db.execute(insert(table), row(str(number)))
    await db.changed()

    alone = tmp_path / "without its log.db"
    shutil.copy(tmp_path / "mererun.db", alone)
    connection = sqlite3.connect(alone)
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (WRITES_IN_LOG,)
    connection.close()


async def test_only_its_user_can_read_the_database(db: Database) -> None:
    async with db.write() as connection:
        await connection.execute(insert(table).values(row()))
    for file in db.path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_a_newer_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mererun.db"
    async with Database.open(path):
        pass
    other = sqlite3.connect(path)
    with other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()
    with pytest.raises(StorageError) as refused:
        async with Database.open(path):
            pass
    assert str(refused.value) == (
        f"{path} was written by a newer mererun (schema 9999); "
        "upgrade mererun or use another --data-dir"
    )


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mererun.db"
    path.write_bytes(b"a shopping list\n" * 100)
    with pytest.raises(StorageError, match="is not a mererun database"):
        async with Database.open(path):
            pass
    assert path.read_bytes().startswith(b"a shopping list")


@pytest.mark.parametrize("where", ["missing/mererun.db", "."])
async def test_a_database_that_cannot_be_opened_is_one_sentence(tmp_path: Path, where: str) -> None:
    with pytest.raises(StorageError, match=r"could not be opened: .*use another --data-dir"):
        async with Database.open(tmp_path / where):
            pass


def test_processes_can_open_a_new_database_together(tmp_path: Path) -> None:
    children = [start("insert", tmp_path, 1) for _ in range(4)]
    assert [child.communicate()[1] for child in children] == [""] * 4


def fill(folder: Path, file_limit: int) -> list[str]:
    command = [sys.executable, CHILDREN, "fill", str(folder), str(file_limit)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_file_size_limit_is_told_and_spares_what_was_written(tmp_path: Path) -> None:
    assert fill(tmp_path, 400_000) == [
        "the database mererun.db could not be read or written (disk I/O error); "
        "check the disk or use another --data-dir",
        "the first job is as it was",
        "the run record runs/1970/01/01/big could not be written: File too large; "
        "free space or move --data-dir",
        "no record is left",
    ]


def test_a_full_disk_is_told_and_spares_what_was_written(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can only be mounted by root")
    try:
        told = fill(tmp_path, 0)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert told == [
        "the database mererun.db could not be written: the disk is full; "
        "free space or move --data-dir",
        "the first job is as it was",
        "the run record runs/1970/01/01/big could not be written: No space left on device; "
        "free space or move --data-dir",
        "no record is left",
    ]

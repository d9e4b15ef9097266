import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import aiosqlite
import anyio
from anyio import CapacityLimiter, to_thread
from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Engine,
    NullPool,
    UpdateBase,
    create_engine,
    event,
)
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from storage.database import Database, connected
from storage.errors import StorageError
from storage.schema import check, migrate
from storage.to_the_end import to_the_end

BUSY_TIMEOUT_MS = 10_000
READERS = 4
# What the log of writes is cut back to once a long read that had made it grow has ended.
LOG_BYTES = 16 << 20
# How often other processes' commits are looked for. One pragma each time.
WATCH_SECONDS = 0.1
# The log is taken into the file by whoever watches, after so many writes of some ten pages each; so
# no writer waits for the disk. Where nobody watches, a writer does it after so many pages.
WRITES_IN_LOG = 200
PAGES_IN_LOG = 4000
ELSEWHERE = "another --data-dir"
T = TypeVar("T")


class SQLite(Database):
    """A file: one writer connection, a few readers.

    SQLite allows one writer at a time. Writers of this process therefore wait on a lock of the
    event loop, which is fair and costs no thread; other processes wait on SQLite's busy time-out.
    """

    shared = False

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        # What goes wrong once it is open may be read by clients: they are told no folders.
        self._name = Path(path.name)
        self._read_only = read_only
        place = _read_only_place(path) if read_only else _place(path)
        self._writer = _async_engine(place, begin="BEGIN IMMEDIATE", connections=1)
        self._readers = _async_engine(place, begin="BEGIN", connections=READERS, query_only=True)
        self._watcher = _async_engine(place, begin=None, connections=1)
        # Held open by durability, for single statements: SQLite makes each a transaction.
        self._single = _async_engine(place, begin=None, connections=2)
        self._single_writers: dict[bool, AsyncConnection] = {}
        # For `run`: a statement from another thread is a message there and one back.
        self._direct = create_engine(place.set(drivername="sqlite"), pool_size=1, max_overflow=0)
        _configure(self._direct, begin="BEGIN IMMEDIATE")
        self._one_thread = CapacityLimiter(1)
        self._writing = anyio.Lock()
        self._writes_in_log = 0
        self._watching = anyio.Lock()

    @classmethod
    @asynccontextmanager
    async def at(cls, path: Path, *, to_read: bool) -> AsyncGenerator[Self]:
        """Open the file; see `Database.open` and `Database.open_to_read`."""
        await to_thread.run_sync(_check if to_read else _prepare, path)
        database = cls(path, read_only=to_read)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(to_the_end, database._close)
            if not to_read:
                await database._connect_writers()
            yield database

    async def _connect_writers(self) -> None:
        # What is open can be written even when the folder has become read-only since.
        with _explained(self._name):
            async with connected(self._writer):
                await to_thread.run_sync(lambda: self._direct.connect().close())

    async def execute(
        self, statement: UpdateBase, values: dict[str, Any], durable: bool = False
    ) -> CursorResult[Any]:
        # At a third of what `write` costs, whose every step goes to the connection's thread.
        async with self._writing:
            self._writes_in_log += 1
            with _explained(self._name):
                return await to_the_end(lambda: self._execute(statement, values, durable))

    async def _execute(
        self, statement: UpdateBase, values: dict[str, Any], durable: bool
    ) -> CursorResult[Any]:
        connection = self._single_writers.get(durable)
        if connection is None:
            connection = self._single_writers[durable] = await self._single.connect()
            await _set_synchronous(connection, "FULL" if durable else "NORMAL")
        try:
            return await connection.execute(statement, values)
        finally:
            # Ends what SQLAlchemy takes for a transaction; to SQLite there is none.
            await connection.rollback()

    async def run(self, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._direct.begin() as connection:
                return work(connection)

        async with self._writing:
            self._writes_in_log += 1
            with _explained(self._name):
                return await to_the_end(lambda: to_thread.run_sync(run, limiter=self._one_thread))

    @asynccontextmanager
    async def write(self, durable: bool = False) -> AsyncGenerator[AsyncConnection]:
        async with self._writing:
            self._writes_in_log += 1
            with _explained(self._name):
                async with connected(self._writer) as connection:
                    await _set_synchronous(connection, "FULL" if durable else "NORMAL")
                    try:
                        await to_the_end(connection.begin)
                        yield connection
                        await to_the_end(connection.commit)
                    except BaseException:
                        await to_the_end(connection.rollback)
                        raise

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        with _explained(self._name):
            async with connected(self._readers) as connection:
                await to_the_end(connection.begin)
                yield connection

    async def changed(self) -> None:
        # It waits before it looks: this process's own commits count, and are many when it is busy.
        await anyio.sleep(WATCH_SECONDS)
        while not await self._has_changed():  # noqa: ASYNC110 - nobody tells of it
            await anyio.sleep(WATCH_SECONDS)

    async def _has_changed(self) -> bool:
        async with self._watching:
            with _explained(self._name):
                async with connected(self._watcher) as connection:
                    driver = await _driver(connection)
                    if self._writes_in_log >= WRITES_IN_LOG:
                        self._writes_in_log = 0
                        with suppress(sqlite3.DatabaseError):  # a writer meets the fault itself
                            await driver.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
                    ((now,),) = await driver.execute_fetchall("PRAGMA data_version")
                    # The number counts for its own connection only, so it is kept there.
                    seen = connection.info.get("data_version")
                    connection.info["data_version"] = now
        return now != seen

    async def checkpoint(self) -> None:
        with suppress(DBAPIError):  # somebody reads or writes: the next one does it
            async with connected(self._watcher) as connection:
                # Only the second one keeps writers out, and has next to nothing left to do.
                await connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
                await connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                await connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")

    async def _close(self) -> None:
        for connection in self._single_writers.values():
            await connection.close()
        for engine in (self._readers, self._writer, self._single):
            await engine.dispose()
        self._direct.dispose()
        if not self._read_only:
            await self._take_in_log()
        await self._watcher.dispose()

    async def _take_in_log(self) -> None:
        # On a full disk the log stays, and the next to open the database takes it in. Another
        # process may hold a long read: shutting down does not wait for it.
        with suppress(DBAPIError):
            async with connected(self._watcher) as connection:
                await connection.exec_driver_sql("PRAGMA busy_timeout = 200")
                await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def _check(path: Path) -> None:
    if not os.path.exists(path):  # `Path.exists` raises where a folder may not be searched
        raise StorageError(
            f"there is no database {path}; start `mererun serve` once or use {ELSEWHERE}"
        )
    engine = create_engine(_read_only_place(path).set(drivername="sqlite"), poolclass=NullPool)
    _configure(engine, begin="BEGIN", query_only=True)
    with _explained(path), engine.connect() as connection:
        check(connection, str(path), ELSEWHERE)


def _place(path: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=str(path))


def _read_only_place(path: Path) -> URL:
    query = {"mode": "ro", "uri": "true"}
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        # SQLite would need to make a -shm file for its locks; there is no log to be read either.
        query["immutable"] = "1"
    return URL.create(
        "sqlite+aiosqlite", database=f"file:{quote(str(path.absolute()))}", query=query
    )


def _prepare(path: Path) -> None:
    engine = create_engine(_place(path).set(drivername="sqlite"), poolclass=NullPool)
    _configure(engine, begin="BEGIN IMMEDIATE")
    try:
        # SQLite would make the file readable for all; its -wal and -shm copy the mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with _explained(path), _alone(path.parent):
            _use_write_ahead_log(engine)
            with engine.begin() as connection:
                migrate(connection, str(path), ELSEWHERE)
    except OSError as error:
        raise StorageError(
            f"the database {path} could not be opened: {error.strerror}; "
            "make it readable and writable or use another --data-dir"
        ) from error


def _use_write_ahead_log(engine: Engine) -> None:
    # Outside any transaction: SQLite changes the journal mode nowhere else.
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    # The change to WAL answers "locked" at once, whatever the busy time-out, when two processes
    # open a new database together; so they take turns on the folder.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _async_engine(
    place: URL, *, begin: str | None, connections: int, query_only: bool = False
) -> AsyncEngine:
    engine = create_async_engine(
        place,
        pool_size=connections,
        # `write` and `read` end their transactions themselves.
        pool_reset_on_return=None,
        max_overflow=0,
        # Without BEGIN there is nothing to roll back.
        skip_autocommit_rollback=begin is None,
    )
    _configure(engine.sync_engine, begin=begin, query_only=query_only)
    return engine


def _configure(engine: Engine, *, begin: str | None, query_only: bool = False) -> None:
    """Set what every connection needs, and begin transactions as told rather than as Python does.

    Python's sqlite3 begins a deferred transaction before the first write; one that has read
    before then fails with "database is locked" at once, whatever the busy time-out.
    """

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {PAGES_IN_LOG}")
        cursor.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        # macOS only: without it, a sync there does not reach the disk.
        cursor.execute("PRAGMA fullfsync = ON")
        if query_only:
            cursor.execute("PRAGMA query_only = ON")
        cursor.close()

    def begun(connection: Connection) -> None:
        assert begin is not None
        dbapi = connection.connection.dbapi_connection
        if isinstance(dbapi, AsyncAdapt_aiosqlite_connection):
            # Straight to the driver, at a fraction of what a statement of SQLAlchemy costs.
            dbapi.run_async(lambda driver: driver.execute(begin))
        else:
            connection.exec_driver_sql(begin)

    def invalidated(
        connection: AsyncAdapt_aiosqlite_connection, _record: object, _error: object
    ) -> None:
        # SQLAlchemy gives up a connection whose statement was cancelled. Closing it alone would
        # not end the transaction: SQLite waits for a statement that Python may still refer to.
        async def give_up() -> None:
            await connection.driver_connection.rollback()
            await connection.driver_connection.close()

        with suppress(asyncio.CancelledError):
            connection.run_async(lambda _: to_the_end(give_up))

    event.listen(engine, "connect", connected)
    event.listen(engine, "invalidate", invalidated)
    if begin is not None:
        event.listen(engine, "begin", begun)


async def _set_synchronous(connection: AsyncConnection, level: Literal["FULL", "NORMAL"]) -> None:
    # SQLite ignores the change inside a transaction, so it goes to the driver before the first one.
    if connection.info.get("synchronous", "NORMAL") == level:
        return
    connection.info["synchronous"] = "unknown"  # should the caller be cancelled right here
    await (await _driver(connection)).execute(f"PRAGMA synchronous = {level}")
    connection.info["synchronous"] = level


async def _driver(connection: AsyncConnection) -> aiosqlite.Connection:
    """The driver's own connection: outside SQLAlchemy's transactions, one hop a statement."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, aiosqlite.Connection)
    return driver


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except IntegrityError:
        raise  # a broken constraint is a fault of the caller, not of the data folder
    except (DBAPIError, PoolTimeout, sqlite3.DatabaseError) as error:
        said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise StorageError(f"the database {path} {_explanation(said)}") from error


def _explanation(said: str) -> str:
    for sign, explanation in _EXPLANATIONS.items():
        if sign in said:
            return explanation
    return f"could not be used: {said}"


_EXPLANATIONS = {
    "is full": "could not be written: the disk is full; free space or move --data-dir",
    "not a database": "is not a mererun database; move it away or use another --data-dir",
    "malformed": "is damaged; move it away or restore a copy",
    "unable to open": "could not be opened; make its folder readable and writable",
    "readonly": "is read-only; make it writable or use another --data-dir",
    "disk I/O error": "could not be read or written (disk I/O error); "
    "check the disk or use another --data-dir",
    "locked": "was held by another process for over "
    f"{BUSY_TIMEOUT_MS // 1000} s; stop that process and try again",
}

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Self, TypeVar

import anyio
from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    ExceptionContext,
    UpdateBase,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from storage.database import Database, connected
from storage.errors import StorageError
from storage.schema import check, migrate
from storage.to_the_end import to_the_end

WRITERS = 4
READERS = 4
CONNECT_SECONDS = 10
# A query that takes longer has lost its server.
COMMAND_SECONDS = 60
LOCK_SECONDS = 10
# `changed` returns after that long though it heard nothing: a notice may have been missed.
QUIET_SECONDS = 3
ELSEWHERE = "another database"
# Two services that start together make the schema one after the other. An arbitrary number.
SCHEMA_LOCK = 7_237_106_914
# So that the locks of a machine that went away are free within a minute.
SERVER_SETTINGS = {
    "application_name": "mererun",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
WRITER_SETTINGS = SERVER_SETTINGS | {"idle_in_transaction_session_timeout": "60s"}

T = TypeVar("T")
asyncpg: Any = import_module("asyncpg")  # it has no types
# What it raises, and what comes of a socket. An internal error is that of a connection which the
# server has just given up.
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class PostgreSQL(Database):
    """A database that services on several machines share.

    Every commit there survives a power cut, since what one machine has claimed must not be claimed
    again by another.
    """

    shared = True

    def __init__(self, url: URL) -> None:
        self._url = url
        # Read by clients too, which are told neither host nor user.
        self._name = f"the database {url.database}"
        self._writers = self._engine(WRITERS, WRITER_SETTINGS)
        self._readers = self._engine(READERS, SERVER_SETTINGS)
        self._writing = self._writers.execution_options(isolation_level="READ COMMITTED")
        self._reading = self._readers.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._listener: Any = None
        self._notified = anyio.Event()
        self._watching = anyio.Lock()

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str, *, to_read: bool) -> AsyncGenerator[Self]:
        """Connect; see `Database.open` and `Database.open_to_read`."""
        database = cls(_parsed(url))
        try:
            await (database._check() if to_read else database._prepare())
            yield database
        finally:
            await to_the_end(database._close)

    async def execute(
        self, statement: UpdateBase, values: dict[str, Any], durable: bool = False
    ) -> CursorResult[Any]:
        async with connected(self._writers) as connection:
            return await to_the_end(lambda: connection.execute(statement, values))

    async def run(self, work: Callable[[Connection], T]) -> T:
        async with self.write() as connection:
            return await connection.run_sync(work)

    @asynccontextmanager
    async def write(self, durable: bool = False) -> AsyncGenerator[AsyncConnection]:
        async with connected(self._writing) as connection:
            try:
                await to_the_end(connection.begin)
                yield connection
                await to_the_end(connection.commit)
            except BaseException:
                await to_the_end(connection.rollback)
                raise

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        async with connected(self._reading) as connection:
            await to_the_end(connection.begin)
            yield connection

    async def changed(self) -> None:
        async with self._watching:
            if self._listener is None or self._listener.is_closed():
                self._listener = await self._listen()
                return  # what was committed before nobody has told
            with anyio.move_on_after(QUIET_SECONDS) as wait:
                await self._notified.wait()
            self._notified = anyio.Event()
            if wait.cancelled_caught:
                await self._ask_whether_alive(self._listener)

    async def checkpoint(self) -> None:
        """The server sees to its log itself."""

    async def _listen(self) -> Any:
        def notified(*_: object) -> None:
            self._notified.set()

        listener = await self._connect(SERVER_SETTINGS)
        try:
            listener.add_termination_listener(notified)
            await listener.add_listener("mererun", notified)
        except BaseException as error:
            listener.terminate()
            if isinstance(error, FAULTS):
                raise self._told(error) from error
            raise
        return listener

    async def _ask_whether_alive(self, listener: Any) -> None:
        # A connection that a network dropped says nothing, as does one on which nothing happens.
        try:
            await listener.execute("SELECT 1", timeout=CONNECT_SECONDS)
        except FAULTS:
            listener.terminate()

    async def _prepare(self) -> None:
        async with self.write() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})"))
            await connection.run_sync(migrate, self._name, ELSEWHERE)

    async def _check(self) -> None:
        async with self.read() as connection:
            await connection.run_sync(check, self._name, ELSEWHERE)

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.terminate()
        await self._writers.dispose()
        await self._readers.dispose()

    def _engine(self, connections: int, settings: dict[str, str]) -> AsyncEngine:
        engine = create_async_engine(
            self._url,
            async_creator=lambda: self._connect(settings),
            # Single statements need no more, and no other way to ask whether a connection is alive
            # is as cheap.
            isolation_level="AUTOCOMMIT",
            pool_pre_ping=True,
            pool_size=connections,
            max_overflow=0,
        )
        event.listen(engine.sync_engine, "handle_error", self._failed)
        return engine

    async def _connect(self, settings: dict[str, str]) -> Any:
        _, arguments = self._url.get_dialect()().create_connect_args(self._url)
        try:
            return await asyncpg.connect(
                **{
                    "timeout": CONNECT_SECONDS,
                    "command_timeout": COMMAND_SECONDS,
                    "server_settings": settings,
                    **arguments,
                }
            )
        except FAULTS as error:
            raise self._told(error) from error
        except (TypeError, ValueError) as error:  # a parameter in the URL
            raise StorageError(f"the URL of {self._name} is not understood: {error}") from error

    def _failed(self, context: ExceptionContext) -> None:
        if context.is_pre_ping:
            return  # the pool makes another connection
        error = context.sqlalchemy_exception or context.original_exception
        # A cancelled statement, too, costs its connection.
        if context.is_disconnect and isinstance(error, Exception):
            raise StorageError(f"{self._name} {_LOST}") from context.original_exception
        if isinstance(error, (DBAPIError, *FAULTS)) and not isinstance(error, IntegrityError):
            raise self._told(error) from context.original_exception

    def _told(self, error: BaseException) -> StorageError:
        return StorageError(f"{self._name} {_explanation(error)}")


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None  # the error may show a password
    if parsed is None or parsed.drivername != "postgresql+asyncpg" or not parsed.database:
        raise StorageError(
            "the database must be a file or postgresql+asyncpg://user@host:5432/database"
        )
    return parsed


def _explanation(error: BaseException) -> str:
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlstate", None) or ""
    for beginning, explanation in _EXPLANATIONS.items():
        if code.startswith(beginning):
            return explanation
    if isinstance(error, PoolTimeout):
        return "is too busy: no connection became free; try again"
    if original and isinstance(original.__cause__, asyncpg.InternalClientError):
        return _LOST
    if isinstance(original, TimeoutError):
        return f"{_UNREACHABLE} (it did not answer in time)"
    if isinstance(original, OSError):
        return f"{_UNREACHABLE} ({os.strerror(original.errno) if original.errno else 'no answer'})"
    return f"could not be used: {original}"


_UNREACHABLE = "cannot be reached: see that its server runs and that host and port are right"
_LOST = "cannot be reached: the connection to its server was lost; try again"
# By the beginning of PostgreSQL's error code.
_EXPLANATIONS = {
    "08": _LOST,
    "25006": "was opened to be read, and is read-only",
    "28": "refused the user: see that name and password are right",
    "3D000": "does not exist on its server; make it with `createdb`",
    "40": "was changed by another process at the same moment; try again",
    "42501": "refused the user: it must own the database, or be granted its schema",
    "53100": "could not be written: its server's disk is full; free space there",
    "53300": "has too many connections; raise max_connections of its server",
    "55P03": f"was held by another process for over {LOCK_SECONDS} s; try again",
    "57P": "cannot be reached: its server is starting or stopping; try again",
}

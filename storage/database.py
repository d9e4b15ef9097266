from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, CursorResult, UpdateBase
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from storage.errors import StorageError
from storage.to_the_end import to_the_end

__all__ = ["Database", "StorageError", "connected"]

T = TypeVar("T")


class Database(ABC):
    """The store of jobs: a SQLite file of one data folder, or PostgreSQL shared by machines.

    Whatever goes wrong in it is a `StorageError`, but for a broken constraint, which is a fault of
    the caller and stays SQLAlchemy's `IntegrityError`.
    """

    # Whether several services, perhaps on several machines, work on it at the same time.
    shared: ClassVar[bool]

    @staticmethod
    def open(place: Path | str) -> AbstractAsyncContextManager["Database"]:
        """Open the database at `place`, a path or `postgresql+asyncpg://…`.

        It is made, or brought to the newest schema, first. Raises `StorageError` when it cannot be
        read or written, is no database, or is newer than this code.
        """
        return _at(place, to_read=False)

    @staticmethod
    def open_to_read(place: Path | str) -> AbstractAsyncContextManager["Database"]:
        """Open an existing database as it is, also one in use or left behind by a crash.

        Nothing is upgraded or written; beside a file, SQLite may leave the (empty) files of its
        locks. Raises `StorageError` when the database is missing, cannot be read, is none, or has
        another schema than this code's.
        """
        return _at(place, to_read=True)

    @abstractmethod
    async def execute(
        self, statement: UpdateBase, values: dict[str, Any], durable: bool = False
    ) -> CursorResult[Any]:
        """One statement that writes, as a transaction of its own; `durable` as in `write`.

        It costs much less than `write`, and runs to its end when the caller is cancelled.
        """

    @abstractmethod
    async def run(self, work: Callable[[Connection], T]) -> T:
        """What `write` does, with `work` as the block: several statements at the cost of one.

        `work` runs on a thread of its own, or as if on one. It is done as a whole or not at all,
        whether the caller is cancelled or not.
        """

    @abstractmethod
    def write(self, durable: bool = False) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction: it commits at the block's end and rolls back when the block raises.

        `durable` means that the commit survives a power cut (one fsync); any commit survives a
        crash of this process. SQLite has one writer at a time; on PostgreSQL, others may commit
        between two statements of the block.
        """

    @abstractmethod
    def read(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """One unchanging view of the database, from the block's first query on; it cannot write."""

    @abstractmethod
    async def changed(self) -> None:
        """Wait until anybody has committed, here or elsewhere, since this last returned.

        It is for one asker at a time. It may return without a change, as it does the first time.
        """

    @abstractmethod
    async def checkpoint(self) -> None:
        """Give back the disk that a log of past writes takes, without making writers wait."""


@asynccontextmanager
async def connected(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """A connection of `engine`, given back whole however often the caller is cancelled."""
    connection = engine.connect()
    try:
        await to_the_end(connection.start)
        yield connection
    finally:
        if connection.sync_connection is not None:
            await to_the_end(connection.close)


def _at(place: Path | str, *, to_read: bool) -> AbstractAsyncContextManager[Database]:
    # Imported here, since both import this module, and asyncpg is an extra.
    if isinstance(place, Path) or "://" not in place:
        from storage.sqlite import SQLite

        return SQLite.at(Path(place), to_read=to_read)
    if find_spec("asyncpg") is None:
        raise StorageError(
            "a database on PostgreSQL needs an extra: pip install 'mererun[postgres]'"
        )
    from storage.postgres import PostgreSQL

    return PostgreSQL.at(place, to_read=to_read)

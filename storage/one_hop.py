import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

import aiosqlite


def one_hop(*place: Any, **options: Any) -> aiosqlite.Connection:
    """As `aiosqlite.connect`, but a statement of SQLAlchemy takes one hop to the connection's
    thread instead of four: to make a cursor, execute, fetch and close.

    The hops are the larger part of what a small statement costs.
    """
    connection = _Connection(lambda: sqlite3.connect(*place, **options), iter_chunk_size=64)
    connection.be_daemon()
    return connection


class _Connection(aiosqlite.Connection):
    def be_daemon(self) -> None:
        # As SQLAlchemy does with the connections that it makes.
        self._thread.daemon = True

    def cursor(self) -> "_Cursor":  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Cursor(self)

    async def in_thread(self, work: Callable[[sqlite3.Cursor], None]) -> None:
        def with_cursor() -> None:
            with closing(self._conn.cursor()) as cursor:
                work(cursor)

        await self._execute(with_cursor)  # pyright: ignore[reportUnknownMemberType]


class _Cursor:
    """The results of one statement, in the shape that SQLAlchemy expects of a cursor."""

    arraysize = 1

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            cursor.execute(statement, parameters)
            self._keep(cursor)

        await self._connection.in_thread(work)

    async def executemany(self, statement: str, parameters: Any) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            cursor.executemany(statement, parameters)
            self._keep(cursor)

        await self._connection.in_thread(work)

    async def fetchall(self) -> list[Any]:
        return self._rows

    async def close(self) -> None:
        pass

    def _keep(self, cursor: sqlite3.Cursor) -> None:
        self._rows = cursor.fetchall()
        self.description = cursor.description
        self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

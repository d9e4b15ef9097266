"""Files that clients upload: a row in the database, the bytes in the data folder.

The bytes of a file are `files/<id>`. While it comes or goes they are `files/<id>.tmp`, and whether
its row is there says which: it is written once the bytes are on disk, and deleted before they go.
So what a crash leaves is told apart at the next start, and bytes whose row is in another database
are never taken for left over.
"""

import os
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from anyio import to_thread
from sqlalchemy import ColumnElement, RowMapping, delete, insert, select, tuple_

from storage.database import Database
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.tables import files
from storage.to_disk import sync, sync_folder
from storage.to_the_end import to_the_end

# That uploads leave free, for the database and the records of runs.
RESERVE_BYTES = 256 << 20


class NoRoom(StorageError):
    """An upload would take the disk's last room."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`api_key` is empty for none; times are in unix seconds; without `expires_at` it stays."""

    id: str
    api_key: str
    filename: str
    mime_type: str
    size: int
    sha256: str
    created_at: float
    expires_at: float | None

    @property
    def place(self) -> "Place":
        return self.created_at, self.id

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


# Of a file in the list of all: it stays the same when others, or the file itself, are deleted.
Place = tuple[float, str]


@dataclass(frozen=True, slots=True)
class FilePage:
    """Some files, the newest first, and whether there are more in the direction asked for."""

    files: Sequence[StoredFile]
    has_more: bool


class Upload:
    """The bytes of a file while they arrive, in a file of their own. Its methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._digest = sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Raises NoRoom, StorageError."""
        with _explained(self._path):
            descriptor = self._opened()
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < RESERVE_BYTES + len(data):
                raise NoRoom("the disk of the data folder has no room for the file")
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
        self._digest.update(data)
        self.size += len(data)

    def sync(self) -> None:
        """Bytes and name are on disk when this returns. Raises StorageError."""
        with _explained(self._path):
            sync(self._opened())
            sync_folder(self._path.parent)

    def discard(self) -> None:
        """Leave nothing, unless it has become a file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            _unlink([self._path])

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        return self._descriptor


class Files:
    """The only place that knows rows and bytes of uploaded files. `StorageError` comes from the
    database or the disk.

    Machines that share a database share its rows; the bytes are where they were uploaded.
    """

    def __init__(self, db: Database, data_dir: Path) -> None:
        self._db = db
        self._folder = data_dir / "files"

    async def settle(self) -> None:
        """Make the folder, and end what an earlier service had begun in it. For whoever holds the
        data folder's lock, before files come and go."""
        left = await to_thread.run_sync(self._prepared)
        for path in left:
            known = await self._some(files.c.id == path.stem)
            with _explained(path):
                if known:
                    path.rename(self._folder / path.stem)
                else:
                    path.unlink()

    @asynccontextmanager
    async def receiving(self, id: str) -> AsyncGenerator[Upload]:
        """An upload, of which nothing is left after the block unless it was kept."""
        upload = Upload(self._coming(id))
        try:
            yield upload
        finally:
            await to_the_end(lambda: to_thread.run_sync(upload.discard))

    async def keep(self, upload: Upload, file: StoredFile) -> None:
        """Make an upload a file; it survives a power cut once this returns."""

        async def keep() -> None:
            await to_thread.run_sync(upload.sync)
            failpoint("file written")
            await self._db.execute(insert(files), asdict(file), durable=True)
            failpoint("file inserted")
            with suppress(FileNotFoundError):  # somebody found it in the list, and deleted it
                await to_thread.run_sync(self._coming(file.id).rename, self._folder / file.id)

        await to_the_end(keep)

    async def get(self, id: str, api_key: str) -> StoredFile | None:
        """None for an unknown id, and for the file of another key."""
        found = await self._some(files.c.id == id, files.c.api_key == api_key)
        return found[0] if found else None

    async def among(self, ids: Iterable[str], api_key: str) -> FilePage:
        """Those of `ids` that the key has, the newest first."""
        found = await self._some(files.c.id.in_(list(ids)), files.c.api_key == api_key)
        return FilePage(found, has_more=False)

    async def page(
        self,
        api_key: str,
        *,
        limit: int,
        before: Place | None = None,
        after: Place | None = None,
    ) -> FilePage:
        """Files of a key, the newest first: the newest of all, those right after (older than) the
        place `after`, or those right before (newer than) the place `before`."""
        where = [files.c.api_key == api_key]
        place = tuple_(files.c.created_at, files.c.id)
        if after is not None:
            where.append(place < after)
        if before is not None:
            where.append(place > before)
        newer = before is not None
        found = await self._some(*where, oldest_first=newer, limit=limit + 1)
        shown = found[:limit]
        return FilePage(shown[::-1] if newer else shown, has_more=len(found) > limit)

    async def open(self, file: StoredFile) -> BinaryIO | None:
        """Its bytes, also if it is deleted meanwhile; None when they are not here (any more)."""
        return await to_thread.run_sync(self._opened, file)

    async def read(self, file: StoredFile) -> bytes | None:
        """All of its bytes at once; None when they are not here (any more)."""

        def read() -> bytes | None:
            content = self._opened(file)
            if content is None:
                return None
            with content, _readable(file):
                return content.read()

        return await to_thread.run_sync(read)

    async def delete(self, file: StoredFile) -> bool:
        """Whether this deleted it: once it does, however many ask. One whose bytes are on another
        machine is not deleted here."""
        here, going = self._folder / file.id, self._coming(file.id)

        def set_aside() -> bool:
            with _explained(here):
                try:
                    here.rename(going)
                except FileNotFoundError:
                    return False
                sync_folder(self._folder)
                return True

        def take_back() -> None:
            with suppress(OSError):
                going.rename(here)

        async def deleted() -> bool:
            was_here = await to_thread.run_sync(set_aside)
            failpoint("file set aside")
            if not was_here and self._db.shared:
                return False
            try:
                row = delete(files).where(files.c.id == file.id)
                found = await self._db.execute(row, {}, durable=True)
            except StorageError:
                await to_thread.run_sync(take_back)
                raise
            failpoint("file row deleted")
            await to_thread.run_sync(_unlink, [going])
            return found.rowcount > 0

        return await to_the_end(deleted)

    async def expire(self, now: float) -> None:
        """Remove the bytes of files whose time is over at `now`; their rows say that it is."""
        due = select(files.c.id).where(files.c.expires_at <= now)
        async with self._db.read() as connection:
            ids = (await connection.execute(due)).scalars().all()
        await to_thread.run_sync(_unlink, [self._folder / id for id in ids])

    async def _some(
        self, *where: ColumnElement[bool], oldest_first: bool = False, limit: int | None = None
    ) -> Sequence[StoredFile]:
        place: list[ColumnElement[Any]] = [files.c.created_at, files.c.id]
        order = place if oldest_first else [each.desc() for each in place]
        query = select(files).where(*where).order_by(*order).limit(limit)
        async with self._db.read() as connection:
            return [_file(row) for row in (await connection.execute(query)).mappings()]

    def _prepared(self) -> list[Path]:
        with _explained(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder.parent)
            return list(self._folder.glob("*.tmp"))

    def _opened(self, file: StoredFile) -> BinaryIO | None:
        with _readable(file), suppress(FileNotFoundError):
            return (self._folder / file.id).open("rb", buffering=0)

    def _coming(self, id: str) -> Path:
        return self._folder / f"{id}.tmp"


def _file(row: RowMapping) -> StoredFile:
    return StoredFile(**row)


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the uploaded file {path.stem} could not be written: {error.strerror}; "
            "free space or move --data-dir"
        ) from error


@contextmanager
def _readable(file: StoredFile) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the uploaded file {file.id} could not be read: {error.strerror}; "
            "make it readable for this user"
        ) from error

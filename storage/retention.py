"""What is kept of the past: rows and records of runs go together, also when a crash comes between.

Rows are deleted first. The same transaction notes their records in `discarded_records`; then the
folders are removed, then the notes. A note that a crash left is worked off by the next prune.
"""

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from sqlalchemy import (
    ColumnElement,
    RowMapping,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
)

from storage.database import Database
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.run_records import RunRecord
from storage.tables import batches, discarded_records, jobs
from storage.to_the_end import to_the_end

_DAY_SECONDS = 86400.0
# Each chunk is one transaction of a few milliseconds. After it others get their turn: those of
# this process by the writer's lock, those of other processes by the rest, since SQLite lets them
# ask again only now and then.
_CHUNK = 25
_REST = 2.0  # as many times as long as a transaction took
# Admission writes the record before the row. A day later it does not come any more.
_STRAY_SECONDS = _DAY_SECONDS
_LISTED_AT_ONCE = 500
_BLOCK_BYTES = 512  # of `st_blocks`, whatever the file system's own are
T = TypeVar("T")

_ITS_BATCH = batches.alias()
# A batch's requests go when it has ended, so that its results are never half there.
_MAY_GO = and_(
    jobs.c.finished_at.is_not(None),
    or_(
        jobs.c.batch_id.is_(None),
        select(_ITS_BATCH.c.seq)
        .where(_ITS_BATCH.c.id == jobs.c.batch_id, _ITS_BATCH.c.ended_at.is_not(None))
        .exists(),
    ),
)
_HAS_JOBS = select(jobs.c.seq).where(jobs.c.batch_id == batches.c.id).exists()


@dataclass(frozen=True, slots=True)
class Keep:
    """What to keep: runs that ended in the last `days`, and of those, the latest that take at most
    `size` bytes of disk. None is no limit."""

    days: float | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed: runs, records of requests that never became one, and bytes of disk."""

    runs: int = 0
    strays: int = 0
    bytes: int = 0

    def __add__(self, other: "Pruned") -> "Pruned":
        return Pruned(self.runs + other.runs, self.strays + other.strays, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class _Old:
    """A run that has ended. `ended_at` is what its age counts from: its batch's, if it has one."""

    seq: int
    record: str
    finished_at: float
    batch_id: str | None
    ended_at: float
    size: int | None


async def prune(db: Database, data_dir: Path, keep: Keep, *, dry_run: bool = False) -> Pruned:
    """Remove what `keep` does not cover, and what requests left that never became a run.

    Runs that are queued or running stay, and so do batches that have not ended. Others write
    meanwhile, and more than one may prune. With `dry_run`, nothing is changed. Raises StorageError
    when something could not be removed; then all else was.
    """
    work = _Prune(db, data_dir, keep, dry_run)
    if not dry_run:
        await complete(db, data_dir)
    pruned = await work.strays() + await work.runs()
    if not dry_run:
        await db.checkpoint()
        await complete(db, data_dir)  # says what could not be removed
    return pruned


async def complete(db: Database, data_dir: Path) -> None:
    """Remove the records whose rows are gone. Raises StorageError when one cannot be."""
    records = sorted(await discarded(db))
    for some in _chunks(records):
        await _remove(db, data_dir, some)
    left = await to_thread.run_sync(
        lambda: [each for each in records if (data_dir / each).exists()]
    )
    if left:
        raise StorageError(
            f"{len(left)} records of runs that are gone could not be removed, {left[0]} among "
            "them; make them removable for this user, and the next prune does the rest"
        )


async def discarded(db: Database) -> set[str]:
    """The records, relative to the data folder, that are to be removed and belong to no run."""
    async with db.read() as connection:
        return set((await connection.execute(select(discarded_records.c.record))).scalars())


class _Prune:
    def __init__(self, db: Database, data_dir: Path, keep: Keep, dry_run: bool) -> None:
        self._db = db
        self._data_dir = data_dir
        self._keep = keep
        self._dry_run = dry_run

    async def strays(self) -> Pruned:
        """Records without a row that nobody will write any more, and that hold no answer."""
        found = Pruned()
        async for paths in _records(self._data_dir):
            query = select(jobs.c.id).where(jobs.c.id.in_([path.name for path in paths]))
            async with self._db.read() as connection:
                known = set((await connection.execute(query)).scalars())
            unknown = [path for path in paths if path.name not in known]
            if unknown:
                found += await to_thread.run_sync(self._remove_strays, unknown)
        return found

    def _remove_strays(self, paths: Sequence[Path]) -> Pruned:
        found = Pruned()
        before = time.time() - _STRAY_SECONDS
        for path in paths:
            try:
                # One that was begun holds an answer: without a note, its row may be in another
                # database, as after a change to a shared one.
                if path.stat().st_mtime > before or RunRecord.at(path).begun:
                    continue
            except (FileNotFoundError, StorageError):
                continue
            found += Pruned(strays=1, bytes=_size(path) or 0)
            if not self._dry_run:
                _remove_folders([path], self._data_dir)
        return found

    async def runs(self) -> Pruned:
        """Oldest first. A batch is as old as its end, and goes as a whole."""
        keep, pruned, freed = self._keep, Pruned(), 0
        if keep.days is None and keep.size is None:
            return pruned
        begin = -1.0 if keep.days is None else time.time() - keep.days * _DAY_SECONDS
        excess = 0 if keep.size is None else await self._total() - keep.size
        gone: set[str] = set()
        async for page in self._pages():
            if page[0].finished_at >= begin and freed >= excess:
                break
            doomed: list[_Old] = []
            for old in page:
                # In a shared store, a record on another machine gives no room here.
                too_much = freed < excess and not (self._db.shared and old.size is None)
                if old.batch_id in gone:
                    continue
                if too_much and old.batch_id is not None and old.ended_at >= begin:
                    gone.add(old.batch_id)
                    batch = await self._batch(old.batch_id)
                    pruned, freed = pruned + batch, freed + batch.bytes
                elif too_much or old.ended_at < begin:
                    doomed.append(old)
                    freed += old.size or 0
            pruned += await self._delete(doomed)
        return pruned

    async def _batch(self, batch_id: str) -> Pruned:
        pruned = Pruned()
        async for page in self._pages(jobs.c.batch_id == batch_id):
            pruned += await self._delete(page)
        return pruned

    async def _pages(self, *where: ColumnElement[bool]) -> AsyncIterator[list[_Old]]:
        """The runs that may go, by their end, a chunk at a time."""
        last = (-1.0, -1)
        while True:
            query = oldest(last, *where)
            async with self._db.read() as connection:
                rows = (await connection.execute(query)).mappings().all()
            if not rows:
                return
            yield await to_thread.run_sync(self._measured, rows)
            last = (rows[-1]["finished_at"], rows[-1]["seq"])

    def _measured(self, rows: Sequence[RowMapping]) -> list[_Old]:
        return [_Old(**row, size=_size(self._data_dir / row["record"])) for row in rows]

    async def _delete(self, doomed: Sequence[_Old]) -> Pruned:
        if not doomed:
            return Pruned()
        gone = {old.record for old in doomed}
        if not self._dry_run:
            gone, seconds = await to_the_end(lambda: self._delete_rows(doomed))
            await _remove(self._db, self._data_dir, sorted(gone))
            await anyio.sleep(seconds * _REST)
        return Pruned(len(gone), bytes=sum(old.size or 0 for old in doomed if old.record in gone))

    async def _delete_rows(self, doomed: Sequence[_Old]) -> tuple[set[str], float]:
        """The records of those that went, since one may have been resumed; and the seconds."""
        rows = delete(jobs).where(jobs.c.seq.in_([old.seq for old in doomed]), _MAY_GO)
        # On disk before a folder goes: a power cut must not bring back rows without records.
        async with self._db.write(durable=True) as connection:
            began = time.perf_counter()
            found = await connection.execute(
                rows.returning(jobs.c.record, jobs.c.batch_id, jobs.c.attempt)
            )
            gone = found.all()
            # A batch's request has no record before it is claimed.
            notes = [{"record": row.record} for row in gone if row.attempt or not row.batch_id]
            if notes:
                await connection.execute(insert(discarded_records), notes)
            if of := {row.batch_id for row in gone if row.batch_id}:
                await connection.execute(delete(batches).where(batches.c.id.in_(of), ~_HAS_JOBS))
            failpoint("pruning")
        return {row.record for row in gone}, time.perf_counter() - began

    async def _total(self) -> int:
        total = 0
        async for paths in _records(self._data_dir):
            total += await to_thread.run_sync(_sizes, paths)
        return total


def oldest(after: tuple[float, int], *where: ColumnElement[bool]) -> Any:
    """The next chunk of runs that may go, by their end; `after` is the last one's end and seq."""
    return (
        select(
            jobs.c.seq,
            jobs.c.record,
            jobs.c.finished_at,
            jobs.c.batch_id,
            func.coalesce(batches.c.ended_at, jobs.c.finished_at).label("ended_at"),
        )
        .join_from(jobs, batches, jobs.c.batch_id == batches.c.id, isouter=True)
        .where(tuple_(jobs.c.finished_at, jobs.c.seq) > after, _MAY_GO, *where)
        .order_by(jobs.c.finished_at, jobs.c.seq)
        .limit(_CHUNK)
    )


async def _remove(db: Database, data_dir: Path, records: Sequence[str]) -> None:
    """Remove records and then their notes; a record that cannot be removed keeps its note."""
    if not records:
        return
    failpoint("rows pruned")
    paths = [data_dir / record for record in records if _is_record(record)]
    here = await to_thread.run_sync(_remove_folders, paths, data_dir)
    # A shared store's record may lie on another machine, which removes it.
    done = [
        record
        for record in records
        if not (data_dir / record).exists() and (data_dir / record in here or not db.shared)
    ]
    failpoint("records pruned")
    if done:
        note = discarded_records.c.record
        await db.execute(delete(discarded_records).where(note.in_(done)), {})


def _remove_folders(paths: Iterable[Path], data_dir: Path) -> set[Path]:
    """Remove records and the folders that they leave empty; returns those that were there."""
    parents: set[Path] = set()
    here: set[Path] = set()
    for path in paths:
        if path.exists():
            here.add(path)
            shutil.rmtree(path, ignore_errors=True)
        parents.add(path.parent)
    for day in parents:
        folder = day
        while folder.parent != data_dir and _is_removed(folder):
            folder = folder.parent
        _sync(folder)
    return here


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # it is not empty
        return False
    return True


def _sync(folder: Path) -> None:
    # What is gone must not come back by a power cut once its note is gone too.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_record(record: str) -> bool:
    """Whether it has the shape `runs/YYYY/MM/DD/<run id>`: nothing else is ever removed."""
    parts = Path(record).parts
    return len(parts) == 5 and parts[0] == "runs" and ".." not in parts


async def _records(data_dir: Path) -> AsyncIterator[Sequence[Path]]:
    """The folders of all records, some at a time."""

    def days() -> list[Path]:
        return [path for path in (data_dir / "runs").glob("*/*/*") if path.is_dir()]

    def listed(day: Path) -> list[Path]:
        try:
            return [day / name for name in os.listdir(day)]
        except FileNotFoundError:
            return []

    for day in await to_thread.run_sync(days):
        for some in _chunks(await to_thread.run_sync(listed, day), _LISTED_AT_ONCE):
            yield some


def _sizes(paths: Sequence[Path]) -> int:
    return sum(_size(path) or 0 for path in paths)


def _size(path: Path) -> int | None:
    """The bytes of disk that a record takes; None when it is not here."""
    try:
        with os.scandir(path) as items:
            blocks = sum(item.stat(follow_symlinks=False).st_blocks for item in items)
        return (blocks + path.stat().st_blocks) * _BLOCK_BYTES
    except OSError:
        return None


def _chunks(items: Sequence[T], size: int = _CHUNK) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))

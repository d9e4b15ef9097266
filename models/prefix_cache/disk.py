"""Computed states of prompts in files, so that they outlive memory, model switches and restarts."""

import logging
import os
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from models.prefix_cache.disk_file import Header, HostArrays, PieceFile, read_header, read_piece
from models.prefix_cache.disk_identity import prefix_names
from models.prefix_cache.disk_index import NEVER, DiskIndex, Entry, Found
from models.prefix_cache.disk_writer import Writer
from models.safetensors_file import BrokenFile

logger = logging.getLogger("mererun.prompt_cache")

# What waits for the disk holds at most so much memory: more than a long prompt's state, and no
# more, since a disk that cannot follow will not catch up.
WAITING_BYTES = 1 << 30
_COMPLAIN_EVERY_SECONDS = 60.0
_INCOMING = "incoming"


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """State to keep, of a prompt's tokens [start, end), with what JSON can hold of it in `meta`.
    `copy` copies its arrays, `nbytes` of them. Where tokens are not enough to cut it, it has a
    point only after exactly `end`. The promise to keep it, if any, begins anew."""

    start: int
    end: int
    ttl_seconds: int
    has_point: bool
    meta: dict[str, Any]
    nbytes: int
    copy: Callable[[], HostArrays]


class DiskTier:
    """At most `limit_bytes` of files in `folder`: a subfolder for each identity, and one for what
    is being written. `find`, `load` and `store` are for one thread, which has the arrays; files
    are written by another.

    A file's time is that of its last use, from which its promise counts. While the process runs,
    only the monotonic clock counts.

    When the folder cannot be used, the tier is off: it has nothing and keeps nothing.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        *,
        identity: str,
        sliceable: bool,
        waiting_bytes: int = WAITING_BYTES,
    ) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._identity, self._sliceable = identity, sliceable
        self._index, self._lock = DiskIndex(), Lock()
        self._coming: dict[str, Header] = {}  # what waits to be written
        self._written = self._read = self._skipped = self._dropped = 0
        self._complained = NEVER
        self._why: str | None = None
        try:
            self._open()
        except OSError as error:
            self._why = f"the folder of the prompt cache cannot be used: {_text(error)}"
            self._limit_bytes = 0
            logger.warning("%s; prompts are kept in memory only (%s)", self._why, folder)
        self._writer = Writer(waiting_bytes)

    def find(self, scope: str, ids: "array[int]", limit: int) -> Found:
        """What there is of the first `limit` of `ids`."""
        (root,) = prefix_names(self._identity, scope, ids, [0])
        with self._lock:
            return self._index.find(root, ids, limit, time.monotonic(), sliceable=self._sliceable)

    def load(self, entry: Entry) -> PieceFile | None:
        """The piece, verified. None if it is not there any more, or is not what was written: then
        its file goes, and all that goes on from it."""
        try:
            piece = read_piece(entry.file)
        except (BrokenFile, OSError) as error:
            with self._lock:
                if self._index.get(entry.header.name) is entry:  # not removed to make room
                    self._drop(entry.file, error)
                    self._remove(entry)
            return None
        self._read += 1
        return piece

    def store(self, scope: str, ids: "array[int]", pieces: Sequence[Piece]) -> None:
        """Keep these pieces, the first of which begins the prompt, and each other begins where the
        one before ends. What is there already is used again, and its promise begins anew."""
        if self._why is not None:
            return
        ends = [0, *(piece.end for piece in pieces)]
        names = list(prefix_names(self._identity, scope, ids, ends))
        for piece, parent, name in zip(pieces, names, names[1:], strict=False):
            if not self._used(name, piece) and not self._offer(piece, parent, name, ids):
                self._skipped += 1
                return  # what comes after would have no parent

    def facts(self) -> dict[str, Any]:
        """For `GET /v1/runtime`."""
        with self._lock:
            return {
                "on": self._why is None,
                "why": self._why,
                "limit_bytes": self._limit_bytes,
                "held_bytes": self._index.held_bytes,
                "files": len(self._index),
                "written": self._written,
                "read": self._read,
                "skipped": self._skipped,
                "dropped": self._dropped,
            }

    def close(self) -> None:
        """Write what waits to be written."""
        self._writer.close()

    def _open(self) -> None:
        own, incoming = self._folder / self._identity, self._folder / _INCOMING
        for each in (self._folder, own, incoming):
            each.mkdir(0o700, parents=True, exist_ok=True)
            if each.stat().st_uid != os.geteuid():
                raise PermissionError(f"{each.name} is another user's")
            each.chmod(0o700)
        for left_over in incoming.iterdir():
            left_over.unlink()
        probe = incoming / "probe"
        probe.touch(0o600)
        probe.unlink()
        now, clock = time.time(), time.monotonic()
        found: list[tuple[float, Entry]] = []
        for file in self._folder.glob("*/*.safetensors"):
            try:
                found.append(_entry(file, now, clock))
            except FileNotFoundError:
                continue
            except (BrokenFile, OSError) as error:
                self._drop(file, error)
                with suppress(OSError):
                    file.unlink()
        for _, entry in sorted(found, key=lambda each: each[0]):
            self._index.add(entry)
        for orphan in self._index.orphans():
            self._remove(orphan)
        self._make_room(0, set())

    def _used(self, name: str, piece: Piece) -> bool:
        """Whether there is such a file, or will be; if so, it was used now."""
        with self._lock:
            entry = self._index.get(name)
            header = self._coming.get(name) or (entry and entry.header)
            if header is None:
                return False
            if piece.has_point and not header.has_point:
                return False
            if piece.ttl_seconds not in (0, header.ttl_seconds):
                return False
            if entry:
                self._index.use(entry)
        if piece.ttl_seconds == header.ttl_seconds:  # otherwise the promise does not begin anew
            self._writer.offer(partial(self._touch, name, time.time(), time.monotonic()))
        return True

    def _offer(self, piece: Piece, parent: str, name: str, ids: "array[int]") -> bool:
        """Have it written; False if that is too much, for the disk or for now."""
        if piece.nbytes > self._limit_bytes or not self._writer.has_room(piece.nbytes):
            return False
        header = Header(name, parent, piece.start, piece.end, piece.ttl_seconds, piece.has_point)
        copied = PieceFile(header, ids[piece.start : piece.end], piece.copy(), piece.meta)
        with self._lock:
            self._coming[name] = header
        task = partial(self._write, copied, piece.nbytes, time.time(), time.monotonic())
        self._writer.offer(task, piece.nbytes)
        return True

    # On the writer's thread.

    def _write(self, piece: PieceFile, nbytes: int, used_at: float, clock: float) -> None:
        header = piece.header
        file = self._folder / self._identity / f"{header.name}.safetensors"
        described_bytes = 256 * (len(piece.arrays) + 8) + 4 * len(piece.ids)  # more or less
        entry = None
        with self._lock:
            above = self._index.ancestors(header.parent)
            hangs = header.start == 0 or bool(above)
            fits = hangs and self._make_room(nbytes + described_bytes, above)
        if fits:
            try:
                length = piece.write(file, self._folder / _INCOMING, used_at)
                expires = clock + header.ttl_seconds if header.ttl_seconds else NEVER
                entry = Entry(file, header, piece.ids, length, expires)
            except OSError as error:
                self._complain(error)
        with self._lock:
            if entry is None:
                self._skipped += 1
            else:
                self._written += 1
                self._index.add(entry)
                self._make_room(0, set())
            if self._coming.get(header.name) is header:
                del self._coming[header.name]

    def _touch(self, name: str, used_at: float, clock: float) -> None:
        with self._lock:
            entry = self._index.get(name)
            if entry is None:
                return
            if entry.header.ttl_seconds:
                entry.expires = clock + entry.header.ttl_seconds
        try:
            os.utime(entry.file, (used_at, used_at))
        except OSError as error:
            self._complain(error)

    def _make_room(self, nbytes: int, spared: set[str]) -> bool:
        """Remove what is of least use until so much more fits. Holding the lock."""
        evictable = self._index.evictable(time.monotonic(), spared)
        while self._index.held_bytes + nbytes > self._limit_bytes:
            entry = next(evictable, None)
            if entry is None:
                return False
            self._remove(entry)
        return True

    def _remove(self, entry: Entry) -> None:
        for each in self._index.remove(entry):
            with suppress(OSError):  # what stays is found again at the next start
                each.file.unlink()

    def _drop(self, file: Path, error: Exception) -> None:
        self._dropped += 1
        logger.warning("dropped from the prompt cache: %s %s", file, _text(error))

    def _complain(self, error: Exception) -> None:
        """Not about each file that a full disk refuses."""
        if time.monotonic() - self._complained >= _COMPLAIN_EVERY_SECONDS:
            self._complained = time.monotonic()
            logger.warning("the prompt cache cannot write to %s: %s", self._folder, _text(error))


def _entry(file: Path, now: float, clock: float) -> tuple[float, Entry]:
    """When the file was used last, and what it is. Its time may be one that is still to come,
    since clocks are set: it was used now then, once and for all."""
    header, ids = read_header(file)
    stat = file.stat()
    if stat.st_mtime > now:
        os.utime(file, (now, now))
    used_at = min(stat.st_mtime, now)
    expires = clock + used_at + header.ttl_seconds - now if header.ttl_seconds else NEVER
    return used_at, Entry(file, header, ids, stat.st_size, expires)


def _text(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)

"""Computed states of prompts in files, so that they outlive memory, model switches and restarts."""

import logging
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from models.prefix_cache.disk_file import Header, HostArrays, PieceFile, read_header, read_piece
from models.prefix_cache.disk_identity import prefix_names
from models.prefix_cache.disk_index import NEVER, DiskIndex, Entry, Found, Promise
from models.prefix_cache.disk_writer import Writer
from models.safetensors_file import BrokenFile

logger = logging.getLogger("mererun.prompt_cache")

# What waits for the disk holds at most so much memory: more than a long prompt's state, and no
# more, since a disk that cannot follow will not catch up.
WAITING_BYTES = 1 << 30
_COMPLAIN_EVERY_SECONDS = 60.0
_INCOMING = "incoming"


@dataclass(frozen=True, slots=True)
class End:
    """A place in a prompt, after so many tokens, up to which its state is to be on disk; with
    `has_point` that of all layers. Its promise, if `ttl_seconds` is not 0, `expires` on the clock.
    """

    tokens: int
    has_point: bool
    ttl_seconds: int = 0
    expires: float = NEVER


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What was computed for some tokens: `nbytes` of arrays, which `copy` copies, and what JSON
    holds of it."""

    nbytes: int
    copy: Callable[[], HostArrays]
    meta: dict[str, Any]


class DiskTier:
    """At most `limit_bytes` of files in `folder`: a subfolder for each identity, and one for what
    is being written. `find`, `load` and `store` are for one thread, which has the arrays; files
    are written by another.

    A file's time is that of its last use, from which its promise counts. While the process runs,
    only `clock` counts, which tells seconds that only grow.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sliceable`: whether what was computed for some tokens is of use without the last of
        them."""
        self.sliceable = sliceable
        self._folder, self._limit_bytes, self._identity = folder, limit_bytes, identity
        self._clock = clock
        self._index, self._lock = DiskIndex(), Lock()
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
        self._part_bytes = max(1, waiting_bytes // 4)

    def find(self, scope: str, ids: "array[int]", limit: int) -> Found:
        """What there is of the first `limit` of `ids`."""
        (root,) = prefix_names(self._identity, scope, ids, [0])
        with self._lock:
            return self._index.find(root, ids, limit, self._clock(), sliceable=self.sliceable)

    def load(self, scope: str, ids: "array[int]", entry: Entry) -> PieceFile | None:
        """The piece, verified, that was found for `ids`. None if it is not there any more, or is
        not what was written: then its file goes, and all that goes on from it."""
        try:
            piece = read_piece(entry.file)
            before = ids[: piece.header.start]
            (name,) = prefix_names(self._identity, scope, before + piece.ids, [piece.header.end])
            if name != piece.header.name:
                raise BrokenFile("is a piece of another prompt's state")
        except (BrokenFile, OSError) as error:
            with self._lock:
                if self._index.get(entry.header.name) is entry:  # not removed to make room
                    self._drop(entry.file, error)
                    self._remove(entry)
            return None
        self._read += 1
        return piece

    def store(
        self,
        scope: str,
        ids: "array[int]",
        ends: Sequence[End],
        piece: Callable[[int, int], Piece],
    ) -> None:
        """Have the state of `ids` up to each of `ends`, which ascend, on disk. What is not there
        yet is written, as `piece(start, end)` has it; what is there was used now."""
        if self._why is not None or not ends:
            return
        root, *names = prefix_names(self._identity, scope, ids, [0, *(e.tokens for e in ends)])
        for end, name in zip(ends, names, strict=True):
            with self._lock:
                whole = self._header_for(end, name, root, ids)
            if whole is None:
                continue
            for header in self._parts(whole, scope, ids, piece(whole.start, whole.end).nbytes):
                made = piece(header.start, header.end)
                if made.nbytes > self._limit_bytes or not self._writer.has_room(made.nbytes):
                    self._skipped += 1
                    return
                self._offer(header, ids[header.start : header.end], made, end.expires)
        with self._lock:
            chain = self._index.find(
                root, ids, ends[-1].tokens, NEVER, sliceable=self.sliceable, coming=True
            ).chain
            for entry in chain:
                self._index.use(entry)
            used = {entry.header.name: self._clock() for entry in chain}
        promised = {
            name: end.expires - end.ttl_seconds
            for end, name in zip(ends, names, strict=True)
            if end.ttl_seconds
        }
        self._writer.offer(partial(self._touch, used, promised=False))
        self._writer.offer(partial(self._touch, promised, promised=True))

    def refresh(self, promises: Iterable[Promise]) -> None:
        """Let them begin now."""
        begun = {each.name: self._clock() for each in promises}
        self._writer.offer(partial(self._touch, begun, promised=True))

    def facts(self) -> dict[str, Any]:
        """For `GET /v1/runtime`."""
        with self._lock:
            return {
                "on": self._why is None,
                "why": self._why,
                "limit_bytes": self._limit_bytes,
                "held_bytes": self._index.held_bytes,
                "files": self._index.files,
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
        now, clock = time.time(), self._clock()
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
        self._make_room(0)

    def _header_for(self, end: End, name: str, root: str, ids: "array[int]") -> Header | None:
        """Of the file that is to be written so that there is what `end` asks for, if any."""
        entry = self._index.get(name)
        if entry is not None:
            there = entry.header
            lacks_point = end.has_point and not there.has_point
            if not lacks_point and end.ttl_seconds in (0, there.ttl_seconds):
                return None
            return replace(there, ttl_seconds=end.ttl_seconds, has_point=end.has_point)
        found = self._index.find(root, ids, end.tokens, NEVER, sliceable=True, coming=True)
        if found.tokens == end.tokens and self.sliceable and not end.ttl_seconds:
            return None
        known = min(found.tokens, end.tokens - 1)
        whole = [entry.header for entry in found.chain if entry.header.end <= known]
        parent, start = (whole[-1].name, whole[-1].end) if whole else (root, 0)
        return Header(name, parent, start, end.tokens, end.ttl_seconds, end.has_point)

    def _parts(self, whole: Header, scope: str, ids: "array[int]", nbytes: int) -> Iterator[Header]:
        """The piece in parts, if it is too large for what may wait: when a disk does not follow,
        a part of the prompt is kept, and the next run goes on from there."""
        count = max(1, -(-nbytes // self._part_bytes))
        step = -(-(whole.end - whole.start) // count)
        cuts = [*range(whole.start + step, whole.end, step), whole.end]
        names = list(prefix_names(self._identity, scope, ids, cuts))
        starts, parents = [whole.start, *cuts], [whole.parent, *names]
        for name, parent, start, end in zip(names[:-1], parents, starts, cuts, strict=False):
            yield Header(name, parent, start, end, ttl_seconds=0, has_point=False)
        yield replace(whole, parent=parents[-2], start=starts[-2])

    def _offer(self, header: Header, ids: "array[int]", piece: Piece, expires: float) -> None:
        """Have it written."""
        promised = header.ttl_seconds > 0
        begun = expires - header.ttl_seconds if promised else self._clock()
        copied = PieceFile(header, ids, piece.copy(), piece.meta)
        file = self._folder / self._identity / f"{header.name}.safetensors"
        entry = Entry(file, header, ids, 0, expires if promised else NEVER)
        with self._lock:
            if self._index.get(header.name) is None:
                self._index.add(entry)  # so that others can hang below it
        self._writer.offer(partial(self._write, copied, entry, piece.nbytes, begun), piece.nbytes)

    # On the writer's thread.

    def _write(self, piece: PieceFile, entry: Entry, nbytes: int, begun: float) -> None:
        described_bytes = 256 * (len(piece.arrays) + 8) + 4 * len(piece.ids)  # more or less
        name, length = entry.header.name, 0
        with self._lock:
            fits = self._make_room(nbytes + described_bytes) and self._index.get(name) is not None
        if fits:
            try:
                length = piece.write(entry.file, self._folder / _INCOMING, self._wall_time(begun))
            except OSError as error:
                self._complain(error)
        with self._lock:
            there = self._index.get(name)
            if length and there is not None:
                self._written += 1
                self._index.add(replace(entry, nbytes=length))
                self._make_room(0)
                return
            self._skipped += 1
            if length:  # but what it hangs below was dropped meanwhile
                entry.file.unlink(missing_ok=True)
            if there is entry:
                self._index.remove(entry)

    def _touch(self, used: dict[str, float], *, promised: bool) -> None:
        """These files were used then, on the clock: those with a promise, which begins anew, or
        those without, since another use is none of a promise."""
        for name, begun in used.items():
            with self._lock:
                entry = self._index.get(name)
                if entry is None or not entry.is_written:
                    continue
                if bool(entry.header.ttl_seconds) != promised:
                    continue
                if promised:
                    entry.expires = begun + entry.header.ttl_seconds
            used_at = self._wall_time(begun)
            try:
                os.utime(entry.file, (used_at, used_at))
            except OSError as error:
                self._complain(error)

    def _wall_time(self, clock: float) -> float:
        return time.time() - self._clock() + clock

    def _make_room(self, nbytes: int) -> bool:
        """Remove what is of least use until so much more fits. Holding the lock."""
        evictable = self._index.evictable(self._clock())
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
        if self._clock() - self._complained >= _COMPLAIN_EVERY_SECONDS:
            self._complained = self._clock()
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

"""Which pieces are on disk, and what chain of them serves a prompt."""

import heapq
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.prefix_cache.disk_file import Header

NEVER = -math.inf


@dataclass(slots=True, eq=False)
class Entry:
    """A file, or one that will be: then it has no bytes yet. `expires` is when its promise does, on
    the clock; `used` grows with each use of any file."""

    file: Path
    header: Header
    ids: "array[int]"
    nbytes: int
    expires: float
    used: int = 0

    @property
    def is_written(self) -> bool:
        return self.nbytes > 0


@dataclass(frozen=True, slots=True)
class Promise:
    """A prompt's first `tokens` are kept until `expires`, in the file of that `name`."""

    name: str
    tokens: int
    ttl_seconds: int
    expires: float


@dataclass(frozen=True, slots=True)
class Found:
    """What the disk has of a prompt: the state of its first `tokens`, by a chain of pieces, the
    last of which may go on with other tokens; and promises that have not expired."""

    tokens: int = 0
    chain: tuple[Entry, ...] = ()
    promises: tuple[Promise, ...] = ()


class DiskIndex:
    """Pieces hang below the one that ends where they start. Several below one may begin with the
    same tokens, since a piece in memory is split when prompts part in it."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._children: dict[str, set[str]] = {}
        self._uses = 0
        self.held_bytes = 0

    @property
    def files(self) -> int:
        return sum(entry.is_written for entry in self._entries.values())

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def add(self, entry: Entry) -> None:
        """Also in the place of one of its name."""
        name = entry.header.name
        if name in self._entries:
            self._remove(self._entries[name])
        self._entries[name] = entry
        self._children.setdefault(entry.header.parent, set()).add(name)
        self.held_bytes += entry.nbytes
        self.use(entry)

    def use(self, entry: Entry) -> None:
        self._uses += 1
        entry.used = self._uses

    def remove(self, entry: Entry) -> list[Entry]:
        """Forget it and all below it, which is of no use without it; returns what it forgot."""
        gone = [entry]
        for each in gone:
            if self._entries.get(each.header.name) is each:
                self._remove(each)
                below = self._children.get(each.header.name, ())
                gone.extend(self._entries[name] for name in below)
        return gone

    def orphans(self) -> list[Entry]:
        """Those that do not begin a prompt, and whose parent is not there."""
        return [
            entry
            for entry in self._entries.values()
            if entry.header.start and entry.header.parent not in self._entries
        ]

    def evictable(self, now: float) -> Iterator[Entry]:
        """The files in the order in which to remove them: none before what hangs below it, promises
        that have not expired after all others, then what was used the longest ago."""
        below = {name: len(children) for name, children in self._children.items()}

        def rank(entry: Entry) -> tuple[bool, int, str]:
            return entry.expires > now, entry.used, entry.header.name

        leaves = [rank(each) for name, each in self._entries.items() if not below.get(name)]
        heapq.heapify(leaves)
        while leaves:
            *_, name = heapq.heappop(leaves)
            entry = self._entries[name]
            if not entry.is_written:
                continue
            yield entry
            parent = entry.header.parent
            below[parent] -= 1
            if not below[parent] and parent in self._entries:
                heapq.heappush(leaves, rank(self._entries[parent]))

    def find(
        self,
        root: str,
        ids: "array[int]",
        limit: int,
        now: float,
        *,
        sliceable: bool,
        coming: bool = False,
    ) -> Found:
        """What serves most of the first `limit` of `ids`, or will, if what is still to be written
        counts. Without `sliceable`, a piece is of use only where it has a point."""
        tokens, chain = 0, ()
        promises: list[Promise] = []
        wanted = np.frombuffer(ids, np.uint32)[:limit]
        open_chains: list[tuple[str, int, tuple[Entry, ...]]] = [(root, 0, ())]
        while open_chains:
            parent, at, above = open_chains.pop()
            for name in self._children.get(parent, ()):
                entry = self._entries[name]
                if not (entry.is_written or coming):
                    continue
                header = entry.header
                same = at + _common_length(entry.ids, wanted[at:])
                whole = same == header.end
                usable = same if sliceable else header.end if whole and header.has_point else 0
                if usable > tokens:
                    tokens, chain = usable, (*above, entry)
                if whole:
                    open_chains.append((name, same, (*above, entry)))
                    if entry.expires > now:
                        promises.append(
                            Promise(name, header.end, header.ttl_seconds, entry.expires)
                        )
        return Found(tokens, chain, tuple(promises))

    def _remove(self, entry: Entry) -> None:
        name, parent = entry.header.name, entry.header.parent
        del self._entries[name]
        self._children[parent].discard(name)
        if not self._children[parent]:
            del self._children[parent]
        self.held_bytes -= entry.nbytes


def _common_length(one: "array[int]", other: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> int:
    length = min(len(one), len(other))
    if length == 0 or one[0] != other[0]:
        return 0
    differs = np.frombuffer(one, np.uint32)[:length] != other[:length]
    first = int(differs.argmax())  # of equal ones, 0
    return first if differs[first] else length

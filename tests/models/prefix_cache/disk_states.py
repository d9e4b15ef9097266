"""States of prompts that show which tokens they are of. `python -m …disk_states <folder>` stores
them without end, for tests that kill it."""

import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.prefix_cache.disk import DiskTier, End, Piece
from models.prefix_cache.disk_file import HostArray, PieceFile
from models.prefix_cache.disk_index import NEVER

IDENTITY = "0" * 64


def tier(
    folder: Path,
    limit_bytes: int = 1 << 30,
    *,
    identity: str = IDENTITY,
    sliceable: bool = True,
    **more: Any,
) -> DiskTier:
    return DiskTier(folder, limit_bytes, identity=identity, sliceable=sliceable, **more)


def arrays(ids: Sequence[int]) -> dict[str, HostArray]:
    keys = np.array(ids, np.float32).reshape(1, 1, -1, 1)
    codes = np.array(ids, np.uint16).reshape(1, 1, -1, 1)
    return {
        "segment.0.keys": HostArray("float32", keys),
        "segment.0.values": HostArray("bfloat16", codes),
        "point.1": HostArray("int32", np.array(len(ids), np.int32)),
        "point.2": HostArray("float16", np.zeros((1, 0, 4), np.float16)),
    }


def keep(
    disk: DiskTier,
    ids: Sequence[int],
    ends: Sequence[int] = (),
    ttl_seconds: int = 0,
    *,
    points: bool = False,
) -> None:
    """Store the state of all of `ids`, or up to each of `ends`."""
    expires = time.monotonic() + ttl_seconds if ttl_seconds else NEVER
    wanted = [End(end, points, ttl_seconds, expires) for end in ends or [len(ids)]]
    disk.store("key", array("I", ids), wanted, lambda start, end: piece(ids, start, end))


def piece(ids: Sequence[int], start: int, end: int) -> Piece:
    return Piece(6 * (end - start) + 4, lambda: arrays(ids[start:end]), {"end": end})


def served(disk: DiskTier, ids: Sequence[int], limit: int | None = None) -> int:
    """Of how many of the first `limit` ids the state comes from disk. It is checked."""
    found = disk.find("key", array("I", ids), len(ids) if limit is None else limit)
    at = 0
    for entry in found.chain:
        piece = disk.load("key", array("I", ids), entry)
        if piece is None:
            return served(disk, ids, limit)
        assert piece.header.start == at
        at = piece.header.end
        known = ids[piece.header.start : min(at, found.tokens)]
        assert list(piece.ids)[: len(known)] == list(known)
        assert_state_of(piece)
    return found.tokens


def assert_state_of(piece: PieceFile) -> None:
    expected = arrays(list(piece.ids))
    assert piece.arrays.keys() == expected.keys()
    for name, each in piece.arrays.items():
        assert each.dtype == expected[name].dtype
        np.testing.assert_array_equal(each.values, expected[name].values, strict=True)


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _store_without_end(folder: Path) -> None:
    disk, number = tier(folder, 3_000_000, waiting_bytes=100_000), 0
    while True:
        number += 1
        ids = [*range(4000), *([number] * 2000)]
        keep(disk, ids, [4000, 4500, 5000, 6000], 300)


if __name__ == "__main__":
    _store_without_end(Path(sys.argv[1]))

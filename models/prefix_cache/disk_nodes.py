"""What goes from the tree in memory to the disk, and comes back."""

# pyright: basic
# since mlx has no types that know slices and buffers.

from array import array
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from models.prefix_cache.disk import DiskTier, End, Piece
from models.prefix_cache.disk_file import HostArray, HostArrays, PieceFile
from models.prefix_cache.disk_index import Found
from models.prefix_cache.layers import Arrays, Point
from models.prefix_cache.tree import Node, PrefixTree, Promise

_SEGMENT, _POINT = "segment.", "point."


@dataclass(frozen=True, slots=True, eq=False)
class DiskNodes:
    """One prompt, in the tree and on disk."""

    tree: PrefixTree
    disk: DiskTier
    scope: str
    ids: "array[int]"

    def bring_back(self, limit: int, now: float) -> Found:
        """Have in memory what the disk has of the first `limit` tokens, where that is more, and
        what it promises. Returns what the disk has."""
        found = self.disk.find(self.scope, self.ids, limit)
        if found.tokens > self._restorable(limit):
            self._load(found, now)
        deepest = max((each.tokens for each in found.promises), default=0)
        if deepest > self._restorable(deepest):
            self._load(self.disk.find(self.scope, self.ids, deepest), now)
        for each in found.promises:
            node = self.tree.ending(self.scope, self.ids[: each.tokens])
            if node is None or not self.tree.can_restore(node):
                continue
            if node.promise is None or node.promise.expires < each.expires:
                self.tree.put(node, promise=Promise(each.ttl_seconds, each.expires))
        return found

    def hand_over(self, limit: int, now: float, *, promised: bool) -> None:
        """Have on disk what is in memory of the first `limit` tokens: of an answer, what the next
        prompt has. Only a run with boundaries of its own has `promised`, and refreshed, what is
        promised there."""
        nodes, known = self.tree.path(self.scope, self.ids[:limit])
        whole = [node for node in nodes if node.end <= known and self.tree.can_restore(node)]
        last = known if self.disk.sliceable else max((node.end for node in whole), default=0)
        ends = {last: End(last, not self.disk.sliceable)} if last else {}
        for node in whole:
            if promised and node.promise is not None and node.is_promised(now):
                ttl, expires = int(node.promise.ttl_seconds), node.promise.expires
                ends[node.end] = End(node.end, node.point is not None, ttl, expires)
        ascending = [ends[tokens] for tokens in sorted(ends)]
        self.disk.store(
            self.scope, self.ids, ascending, lambda start, end: _piece(nodes, start, end)
        )

    def _restorable(self, limit: int) -> int:
        nodes, known = self.tree.path(self.scope, self.ids[:limit])
        if self.disk.sliceable:
            return known
        return max((node.end for node in nodes if node.point and node.end <= known), default=0)

    def _load(self, found: Found, now: float) -> None:
        if sum(entry.nbytes for entry in found.chain) > self.tree.limit_bytes:
            return
        for entry in found.chain:
            end = min(entry.header.end, found.tokens)
            is_last = entry is found.chain[-1]
            if not is_last and self.tree.path(self.scope, self.ids[:end])[1] == end:
                continue
            piece = self.disk.load(self.scope, self.ids, entry)
            if piece is None or not self._add(piece, end, is_last, bool(found.promises), now):
                return

    def _add(
        self, piece: PieceFile, end: int, with_point: bool, promised: bool, now: float
    ) -> bool:
        """Put the piece up to `end` into the tree; False if there is no room."""
        _, known = self.tree.path(self.scope, self.ids[:end])
        parent = self.tree.ending(self.scope, self.ids[:known])
        start = piece.header.start
        if parent is None or known < start:
            return False
        segment = {
            name.removeprefix(_SEGMENT): HostArray(
                each.dtype, each.values[..., known - start : end - start, :]
            )
            for name, each in piece.arrays.items()
            if name.startswith(_SEGMENT) and known < end
        }
        point = {
            name.removeprefix(_POINT): each
            for name, each in piece.arrays.items()
            if name.startswith(_POINT) and with_point
        }
        nbytes = sum(each.values.nbytes for each in (*segment.values(), *point.values()))
        if not self.tree.make_room(nbytes, promised, parent, now):
            return False
        node = parent
        if known < end:
            node = self.tree.add(parent, self.ids[known:end], _from_host(segment), now)
        if with_point and piece.header.has_point:
            self.tree.put(node, point=Point(_from_host(point), piece.meta))
        return True


def _piece(nodes: list[Node], start: int, end: int) -> Piece:
    """What the nodes of a path have of tokens [start, end), and the point that is there."""
    parts = [
        (node, max(start, node.start) - node.start, min(end, node.end) - node.start)
        for node in nodes
        if node.start < end and start < node.end
    ]
    point = next((node.point for node in nodes if node.end == end), None)
    nbytes = sum(
        each.nbytes * (to - at) // len(node.ids)
        for node, at, to in parts
        for each in node.segment.values()
    )
    nbytes += sum(each.nbytes for each in point.arrays.values()) if point else 0
    return Piece(nbytes, lambda: _copies(parts, point), point.meta if point else {})


def _copies(parts: list[tuple[Node, int, int]], point: Point | None) -> HostArrays:
    copies: dict[str, HostArray] = {}
    for name in parts[0][0].segment if parts else ():
        arrays = [node.segment[name][..., at:to, :] for node, at, to in parts]
        copies[_SEGMENT + name] = _to_host(
            arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=-2)
        )
    for name, each in (point.arrays if point else {}).items():
        copies[_POINT + name] = _to_host(each)
    return copies


def _to_host(tensor: mx.array) -> HostArray:
    codes = tensor.view(mx.uint16) if tensor.dtype == mx.bfloat16 else tensor
    return HostArray(str(tensor.dtype).removeprefix("mlx.core."), np.array(codes, order="C"))


def _from_host(arrays: dict[str, HostArray]) -> Arrays:
    return {name: _to_mlx(each.dtype, each.values) for name, each in arrays.items()}


def _to_mlx(dtype: str, values: "np.ndarray[Any, Any]") -> mx.array:
    copied = mx.array(values)
    return copied.view(mx.bfloat16) if dtype == "bfloat16" else copied

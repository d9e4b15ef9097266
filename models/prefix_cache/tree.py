"""What is kept of the prompts of each scope: a radix tree of token ids."""

# pyright: basic

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from models.prefix_cache.layers import Arrays, Point, bytes_of, cut


@dataclass(slots=True)
class Promise:
    """What is kept for `ttl_seconds` after each use, unless memory runs out."""

    ttl_seconds: float
    expires: float


@dataclass(frozen=True, slots=True, eq=False)
class Suspended:
    """The run that stopped here and will come again, with the logits of its next token, [1,
    vocabulary], if it has these."""

    job: str
    logits: mx.array | None


@dataclass(slots=True, eq=False)
class Node:
    """Some tokens after those of its parent, and what was computed for them.

    Point, promise and suspended run are those after the last of its tokens.
    """

    ids: "array[int]"
    start: int
    parent: "Node | None"
    segment: Arrays
    used: float
    point: Point | None = None
    promise: Promise | None = None
    suspended: Suspended | None = None
    children: "dict[int, Node]" = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @property
    def end_bytes(self) -> int:
        """Of what is there for its last token only."""
        logits = self.suspended.logits if self.suspended else None
        return bytes_of(self.point.arrays if self.point else {}) + (
            0 if logits is None else logits.nbytes
        )

    @property
    def nbytes(self) -> int:
        return bytes_of(self.segment) + self.end_bytes

    def is_promised(self, now: float) -> bool:
        return self.promise is not None and now < self.promise.expires


class PrefixTree:
    """At most `limit_bytes` of segments and points.

    Where segments suffice (`can_be_cut`), a prefix can be brought back after any of its tokens;
    if not, only where there is a point.
    """

    def __init__(self, limit_bytes: int, can_be_cut: bool) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._can_be_cut = can_be_cut
        self._roots: dict[str, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if node.parent is not None:
                yield node

    def clear(self) -> None:
        """Hold nothing; the memory is free at once, since no node refers to another any more."""
        for node in list(self):
            node.parent = None
        self._roots.clear()
        self.held_bytes = 0

    def path(self, scope: str, ids: "array[int]") -> tuple[list[Node], int]:
        """The nodes that have the beginning of `ids`, perhaps only a part of the last one's
        tokens, and the length of that beginning."""
        nodes: list[Node] = []
        node, done = self._roots.get(scope), 0
        while node is not None and done == node.end and done < len(ids):
            node = node.children.get(ids[done])
            if node is not None:
                nodes.append(node)
                done += _common_length(node.ids, ids[done : done + len(node.ids)])
        return nodes, done

    def ending(self, scope: str, ids: "array[int]") -> Node | None:
        """The node that ends where `ids` do, if all of them are there. May cut one in two."""
        if not ids:
            root = Node(array("I"), 0, None, {}, 0.0)
            return self._roots.setdefault(scope, root)
        nodes, known = self.path(scope, ids)
        if known < len(ids):
            return None
        return nodes[-1] if nodes[-1].end == known else self._cut(nodes[-1], known)

    def add(self, parent: Node, ids: "array[int]", segment: Arrays, now: float) -> Node:
        """A node after `parent`, which has no child that begins with the same token."""
        node = Node(ids, parent.end, parent, segment, now)
        parent.children[ids[0]] = node
        self.held_bytes += node.nbytes
        return node

    def put(self, node: Node, **changes: Any) -> None:
        """Change what is there for the last token of `node`."""
        self.held_bytes -= node.end_bytes
        for name, value in changes.items():
            setattr(node, name, value)
        self.held_bytes += node.end_bytes

    def can_restore(self, node: Node) -> bool:
        return self._can_be_cut or node.point is not None

    def make_room(self, nbytes: int, promised: bool, beside: Node, now: float) -> bool:
        """Give up what is worth least until there is room for so many bytes more, `beside` a node
        that stays. Only what is `promised` takes the room of what is. Without need, or if there
        cannot be so much room, nothing goes."""
        if self.held_bytes + nbytes <= self.limit_bytes:
            return True
        stay = self._needed(promised, beside, now)
        needed = sum(bytes_of(node.segment) for node in stay)
        if not promised:
            needed += sum(node.end_bytes for node in stay if node.is_promised(now))
        if needed + nbytes > self.limit_bytes:
            return False
        while self.held_bytes + nbytes > self.limit_bytes:
            least = min(
                (
                    node
                    for node in self
                    if (node.end_bytes and (promised or not node.is_promised(now)))
                    or (not node.children and node not in stay)
                ),
                key=lambda node: (node.is_promised(now), self._value(node, node in stay, now)),
            )
            self._give_up(least, stay)
        return True

    def _needed(self, promised: bool, beside: Node, now: float) -> set[Node]:
        """The nodes whose segments must stay, because of `beside` and of promises below."""
        needed: set[Node] = set()
        for node in (beside, *(() if promised else self)):
            if node is beside or node.is_promised(now):
                above: Node | None = node
                while above is not None and above not in needed:
                    needed.add(above)
                    above = above.parent
        return needed

    def _value(self, node: Node, stays: bool, now: float) -> float:
        """The tokens that it saves, by recency and bytes: those since the next place above it that
        can be restored."""
        above = node.parent
        while above is not None and above.parent is not None and not self.can_restore(above):
            above = above.parent
        saved = node.end - (above.end if above is not None else 0)
        only_end = stays or node.children
        nbytes = node.end_bytes if only_end else node.nbytes
        if only_end and node.point is None:
            saved = 1  # by the logits of a suspended run
        return saved / (max(nbytes, 1) * (1 + now - node.used))

    def _give_up(self, node: Node, stay: set[Node]) -> None:
        """Of an inner node, what is there for its last token; of a leaf, all, and what above it was
        there for its sake."""
        if node.children or node in stay:
            kept_promise = node.promise if self._can_be_cut else None
            self.put(node, point=None, suspended=None, promise=kept_promise)
            return
        above = node
        while above.parent is not None and not above.children and above not in stay:
            if above is not node and self.can_restore(above):
                break
            self.held_bytes -= above.nbytes
            del above.parent.children[above.ids[0]]
            above = above.parent

    def _cut(self, node: Node, tokens: int) -> Node:
        """The new node that has the first tokens of `node`, up to so many of the prompt."""
        at, parent = tokens - node.start, node.parent
        assert parent is not None
        first, second = cut(node.segment, at)
        mx.eval(first, second)
        upper = Node(node.ids[:at], node.start, parent, first, node.used)
        upper.children[node.ids[at]] = parent.children[node.ids[0]] = node
        parent.children[upper.ids[0]] = upper
        node.ids, node.start, node.parent, node.segment = node.ids[at:], tokens, upper, second
        return upper


def _common_length(one: "array[int]", other: "array[int]") -> int:
    if one == other:
        return len(one)
    length = min(len(one), len(other))
    different = np.frombuffer(one, np.uint32, length) != np.frombuffer(other, np.uint32, length)
    return int(different.argmax()) if different.any() else length

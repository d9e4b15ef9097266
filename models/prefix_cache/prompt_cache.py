"""What was computed for the prompts of earlier runs, for those that begin alike."""

# pyright: basic

import sys
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from models.engine.protocol import CacheUse, Run, ids_of
from models.prefix_cache.disk import DiskTier
from models.prefix_cache.disk_index import Promise as OnDisk
from models.prefix_cache.disk_nodes import DiskNodes
from models.prefix_cache.layers import (
    Arrays,
    Point,
    bytes_of,
    can_be_cut,
    point_of,
    restore,
    segment_of,
)
from models.prefix_cache.tree import Node, PrefixTree, Promise, Suspended


@dataclass(slots=True, eq=False)
class RunState:
    """Where a run stands: the layers of its model after `ids`.

    `logits` are those of the next token, [1, vocabulary], once they are known. Its prefill stops
    at `stops`, to have the state there kept.
    """

    run: Run
    layers: list[Any]
    ids: "array[int]" = field(default_factory=ids_of)
    logits: mx.array | None = None
    stops: tuple[int, ...] = ()
    reused_tokens: int = 0
    use: CacheUse | None = None


class PromptCache:
    """States of at most `limit_bytes`, each of use to runs of its scope only; 0 keeps none.

    `make_layers` makes the fresh layers of a run, and `clock` tells seconds that only grow.
    """

    def __init__(
        self,
        make_layers: Callable[[], list[Any]],
        limit_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_layers, self._clock = make_layers, clock
        self._can_be_cut = can_be_cut(make_layers())
        self._limit_bytes = limit_bytes
        self._disk: DiskTier | None = None
        self._bytes_per_token = self._bytes_per_point = 0  # as measured so far
        self._tree = PrefixTree(limit_bytes, self._can_be_cut)
        self._prompt_tokens = self._reused_tokens = self._computed_tokens = 0

    def keep_on(self, disk: DiskTier) -> None:
        """From now on, keep on disk, too, what is computed for prompts."""
        self._disk = disk

    def close(self) -> None:
        """Return once the disk has all that it was given."""
        if self._disk is not None:
            self._disk.close()

    def clear(self) -> None:
        """Hold nothing, as if nothing had been run. What was measured is still known."""
        self._tree.clear()
        self._prompt_tokens = self._reused_tokens = self._computed_tokens = 0

    def begin(self, run: Run) -> RunState:
        """The state that `run` goes on from, its own. The promises that it reads are refreshed."""
        boundaries = _boundaries_of(run)
        last = len(run.prompt) - 1
        limit = max(boundaries, default=0) if run.boundaries else last
        on_disk = self._bring_back(run, limit)
        nodes, known = self._tree.path(run.scope, run.prompt)
        whole = [node for node in nodes if node.end <= known]
        use = self._use(run, boundaries, whole) if run.boundaries else None
        if self._disk is not None and use is not None:
            self._disk.refresh(each for each in on_disk if each.tokens <= use.read_tokens)
        state = RunState(run, self._make_layers(), use=use)
        tokens = min(known, limit)
        for node in whole:
            if node.suspended is not None and node.suspended.job == run.job:
                # Its own, so that it may have what is beyond its boundaries, once.
                suspended = node.suspended
                self._tree.put(node, suspended=None)
                if suspended.logits is not None and node.end > last and run.max_tokens:
                    state.logits, tokens = suspended.logits, node.end
                else:
                    tokens = max(tokens, min(node.end, last))
        self._restore(state, nodes, tokens)
        stops = set(boundaries)
        if not self._can_be_cut:
            # Where a prompt that goes on from this one, or an answer that is not written down as
            # it was generated, has use for it.
            stops.add(last if run.answer_from is None else min(run.answer_from, last))
        state.stops = tuple(sorted(tokens for tokens in stops if tokens > len(state.ids)))
        for tokens, ttl_seconds in boundaries.items():
            if tokens <= len(state.ids):
                self._promise(run, tokens, ttl_seconds)
        return state

    def keep(self, state: RunState) -> None:
        """Keep the state where it is, for as long as a boundary there asks for."""
        ttl_seconds = _boundaries_of(state.run).get(len(state.ids))
        self._kept(lambda: self._add(state, ttl_seconds, None))

    def settle(self, state: RunState, suspended: bool) -> None:
        """Keep what a run leaves, which has ended or, if `suspended`, will come again."""
        prompt = state.run.prompt
        self._prompt_tokens += len(prompt)
        self._reused_tokens += state.reused_tokens
        self._computed_tokens += min(len(state.ids), len(prompt)) - state.reused_tokens
        waiting = Suspended(state.run.job, state.logits) if suspended else None
        if state.ids:
            self._kept(lambda: self._add(state, None, waiting))
        state.layers.clear()
        mx.clear_cache()
        self._kept(lambda: self._hand_over(state.run))

    def facts(self) -> dict[str, Any]:
        """For `GET /v1/runtime`: bytes and tokens, the latter since the start."""
        now = self._clock()
        return {
            "memory": {
                "limit_bytes": self._limit_bytes,
                "held_bytes": self._tree.held_bytes,
                "segments": sum(1 for _ in self._tree),
                "promises": sum(node.is_promised(now) for node in self._tree),
            },
            "tokens": {
                "prompt": self._prompt_tokens,
                "reused": self._reused_tokens,
                "computed": self._computed_tokens,
            },
            "disk": self._disk and self._disk.facts(),
        }

    def _bring_back(self, run: Run, limit: int) -> Sequence[OnDisk]:
        """Have in memory what the disk has of the run's prompt; returns what is promised there."""
        if self._disk is None:
            return ()
        on_disk = DiskNodes(self._tree, self._disk, run.scope, run.prompt)
        promises: list[OnDisk] = []
        self._kept(lambda: promises.extend(on_disk.bring_back(limit, self._clock()).promises))
        return promises

    def _hand_over(self, run: Run) -> None:
        """Keep on disk what is promised of the run's prompt, or of one without boundaries all. The
        ends of answers stay in memory: the prompts that go on from them bring them along."""
        if self._disk is None:
            return
        limit = max(_boundaries_of(run), default=0) if run.boundaries else len(run.prompt) - 1
        on_disk = DiskNodes(self._tree, self._disk, run.scope, run.prompt)
        on_disk.hand_over(limit, self._clock(), promised=bool(run.boundaries))

    def _use(self, run: Run, boundaries: dict[int, int], nodes: list[Node]) -> CacheUse:
        now, limit, read = self._clock(), max(boundaries, default=0), 0
        for node in nodes:
            if node.promise is not None and node.is_promised(now) and node.end <= limit:
                self._tree.put(node, promise=_promise(node.promise.ttl_seconds, now))
                read = node.end
        kept = max((tokens for tokens in boundaries if self._fits(tokens)), default=0)
        return CacheUse(run.job, read, max(read, kept))

    def _restore(self, state: RunState, nodes: list[Node], tokens: int) -> None:
        """Go on after so many tokens, or the most below that can be restored."""
        if not self._can_be_cut:
            ends = [node.end for node in nodes if node.point is not None]
            tokens = max((end for end in ends if end <= tokens), default=0)
            if tokens < len(state.run.prompt):
                state.logits = None
        reused = [node for node in nodes if node.start < tokens]
        if not reused:
            return
        try:
            restore(
                state.layers,
                [node.segment for node in reused],
                reused[-1].point,
                tokens,
                len(state.run.prompt),
            )
        except (RuntimeError, MemoryError):
            _tell("A kept state could not be used")
            state.layers, state.logits = self._make_layers(), None
            return
        for node in reused:
            if node.end <= tokens:  # of a part, what is cut off later was not used
                node.used = self._clock()
        state.ids, state.reused_tokens = state.run.prompt[:tokens], tokens

    def _promise(self, run: Run, tokens: int, ttl_seconds: float) -> None:
        """Promise the first tokens of the run's prompt, if they are there and can be restored."""

        def promise() -> None:
            node = self._tree.ending(run.scope, run.prompt[:tokens])
            if node is not None and self._tree.can_restore(node):
                self._promise_node(node, ttl_seconds)

        self._kept(promise)

    def _promise_node(self, node: Node, ttl_seconds: float) -> None:
        node.used = now = self._clock()
        if node.promise is not None and node.is_promised(now):
            ttl_seconds = max(ttl_seconds, node.promise.ttl_seconds)
        self._tree.put(node, promise=_promise(ttl_seconds, now))

    def _add(self, state: RunState, ttl_seconds: float | None, suspended: Suspended | None) -> None:
        tree, scope, ids, now = self._tree, state.run.scope, state.ids, self._clock()
        _, known = tree.path(scope, ids)
        if known == len(ids) and self._can_be_cut and ttl_seconds is None and suspended is None:
            return
        node = tree.ending(scope, ids[:known])
        assert node is not None
        node.used = now
        # Nothing is copied before there is room for it.
        segment = segment_of(state.layers, known, len(ids)) if known < len(ids) else {}
        point = point_of(state.layers) if known < len(ids) or node.point is None else None
        logits = suspended.logits if suspended else None
        arrays = [*segment.values(), *(point.arrays.values() if point else ())]
        arrays += [] if logits is None else [logits]
        self._measure(segment, len(ids) - known, point)
        nbytes = sum(each.nbytes for each in arrays)
        if not tree.make_room(nbytes, ttl_seconds is not None, node, now):
            return
        mx.eval(arrays)
        if known < len(ids):
            node = tree.add(node, ids[known:], segment, now)
        node.used = now
        tree.put(node, point=point or node.point, suspended=suspended or node.suspended)
        if ttl_seconds is not None:
            self._promise_node(node, ttl_seconds)

    def _measure(self, segment: Arrays, tokens: int, point: Point | None) -> None:
        if tokens:
            self._bytes_per_token = bytes_of(segment) // tokens
        if point is not None:
            self._bytes_per_point = max(self._bytes_per_point, bytes_of(point.arrays))

    def _fits(self, tokens: int) -> bool:
        """Whether the first `tokens` of a prompt have room, where there is any."""
        nbytes = self._bytes_per_token * tokens + self._bytes_per_point
        return 0 < self._limit_bytes >= nbytes

    def _kept(self, keep: Callable[[], None]) -> None:
        """What fails for want of memory is not kept; the run goes on."""
        try:
            keep()
        except (RuntimeError, MemoryError):
            _tell("A computed state could not be kept")


def _boundaries_of(run: Run) -> dict[int, int]:
    """Time to live by tokens, ascending. One token is always left to compute."""
    found: dict[int, int] = {}
    for each in run.boundaries:
        tokens = min(each.tokens, len(run.prompt) - 1)
        if tokens > 0:
            found[tokens] = max(each.ttl_seconds, found.get(tokens, 0))
    return found


def _promise(ttl_seconds: float, now: float) -> Promise:
    return Promise(ttl_seconds, now + ttl_seconds)


def _tell(what: str) -> None:
    print(f"{what}:", file=sys.stderr)
    traceback.print_exc()

"""A model of no weights, whose layers hold just what they must: so that it can be seen whether what
was kept is brought back. Runs in a process that has MLX."""

import gc
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.boundary import Boundary
from models.engine.protocol import Run, ids_of

WINDOW = 4
Kinds = Literal["growing", "windowed", "recurrent", "listed"]
TOKEN_BYTES = 8  # of a layer that grows


@dataclass(frozen=True, slots=True)
class Step:
    """A run, with what comes of it: it computes at most `computes` tokens, in chunks, and generates
    no more than `answer`."""

    prompt: tuple[int, ...]
    boundaries: tuple[Boundary, ...] = ()
    answer: tuple[int, ...] = ()
    scope: str = ""
    now: float = 0.0
    computes: int = 1 << 30
    chunk: int = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    read_tokens: int
    kept_tokens: int
    reused_tokens: int
    computed_to: int
    held_bytes: int
    counted_bytes: int


def outcomes(kinds: Kinds, limit_bytes: int, steps: Sequence[Step]) -> list[Outcome]:
    """What comes of the runs, one after the other. Raises AssertionError when one of them is given
    what is not its own."""
    from models.prefix_cache.prompt_cache import PromptCache

    now = 0.0
    cache = PromptCache(lambda: make_layers(kinds), limit_bytes, lambda: now)
    found: list[Outcome] = []
    for place, step in enumerate(steps):
        now = step.now
        run = Run(f"{place}", 1, 0.0, 1.0, 0, 0, (), ids_of(step.prompt), 0, step.scope)
        state = cache.begin(replace(run, boundaries=step.boundaries))
        check(state.layers, state.ids)
        assert state.ids == run.prompt[: len(state.ids)]
        reused, left = len(state.ids), step.computes
        while len(state.ids) < len(step.prompt) - 1 and left > 0:
            start = len(state.ids)
            stop = min((each for each in state.stops if each > start), default=1 << 30)
            end = min(start + step.chunk, start + left, stop, len(step.prompt) - 1)
            _send(state, step.prompt[start:end])
            left -= end - start
            if end in state.stops:
                cache.keep(state)
        if left > 0 and step.answer:
            for token in (step.prompt[-1], *step.answer):
                _send(state, (token,))
        computed_to = len(state.ids)
        cache.settle(state, suspended=False)
        read, kept = (state.use.read_tokens, state.use.kept_tokens) if state.use else (0, 0)
        held = cache.facts()["memory"]["held_bytes"]
        counted = sum(node.nbytes for node in cache._tree)
        found.append(Outcome(read, kept, reused, computed_to, held, counted))
    return found


def make_layers(kinds: Kinds) -> list[Any]:
    from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

    match kinds:
        case "growing":
            return [KVCache()]
        case "windowed":
            return [RotatingKVCache(WINDOW), KVCache()]
        case "recurrent":
            return [ArraysCache(2)]
        case "listed":
            return [CacheList(KVCache(), RotatingKVCache(WINDOW, 1)), CacheList(ArraysCache(1))]


def compute(layers: Sequence[Any], ids: Sequence[int], before: Sequence[int]) -> None:
    """What a model does to its layers: the keys and values of these are the tokens themselves, and
    a recurrent state is made of all tokens so far."""
    import mlx.core as mx
    from mlx_lm.models.cache import ArraysCache

    keys = mx.array(list(ids), mx.float32)[None, None, :, None]
    for layer in _flat(layers):
        if type(layer) is ArraysCache:
            layer[0] = mx.array([_mixed([*before, *ids])])
        else:
            layer.update_and_fetch(keys, keys)
    mx.eval([layer.state for layer in _flat(layers)])


def check(layers: Sequence[Any], ids: Sequence[int]) -> None:
    """Whether the layers are those after exactly these tokens."""
    from mlx_lm.models.cache import ArraysCache, KVCache

    for layer in _flat(layers):
        if not ids:
            assert layer.empty()
        elif type(layer) is ArraysCache:
            assert layer[0].tolist() == [_mixed(ids)]
        else:
            assert layer.offset == len(ids)
            for held in (layer.keys, layer.values):
                if type(layer) is KVCache:
                    assert held[0, 0, : len(ids), 0].tolist() == list(ids)
                else:
                    seen = layer._temporal_order(held)[0, 0, :, 0].tolist()
                    recent = min(len(ids), WINDOW - 1 - layer.keep)
                    assert seen[-recent:] == list(ids[-recent:])
                    assert seen[: layer.keep] == list(ids[: layer.keep])


def _send(state: Any, ids: Sequence[int]) -> None:
    compute(state.layers, ids, state.ids)
    state.ids.extend(array("I", ids))


def _flat(layers: Sequence[Any]) -> list[Any]:
    from mlx_lm.models.cache import CacheList

    flat: list[Any] = []
    for layer in layers:
        flat += _flat(layer.caches) if type(layer) is CacheList else [layer]
    return flat


def _mixed(ids: Sequence[int]) -> int:
    return random.Random(str(list(ids))).getrandbits(20)


def held_and_active_bytes(limit_bytes: int, prompts: int) -> tuple[int, int]:
    """What the cache says that it holds of many prompts that begin alike, and what MLX says."""
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    from models.prefix_cache.prompt_cache import PromptCache

    was = mx.set_cache_limit(0)  # else buffers are used again that are larger than they have to be
    gc.collect()
    mx.eval(mx.random.normal((1,)))  # so that what MLX has for itself is there
    before = mx.get_active_memory()
    cache = PromptCache(lambda: [KVCache(), RotatingKVCache(64)], limit_bytes)
    chance = random.Random(0)
    begin = chance.choices(range(100), k=300)

    def go(place: int) -> None:
        ids = begin[: chance.randrange(300)] + chance.choices(range(100), k=70)
        marks = (Boundary(chance.randrange(1, len(ids)), 300),) if place % 2 else ()
        state = cache.begin(Run(f"{place}", 1, 0.0, 1.0, 0, 0, (), ids_of(ids), boundaries=marks))
        for end in sorted({*state.stops, len(ids)}):
            if tokens := end - len(state.ids):
                for layer in state.layers:
                    keys = mx.random.normal((1, 2, tokens, 32))
                    layer.update_and_fetch(keys, keys)
                state.ids.extend(ids[len(state.ids) : end])
                cache.keep(state)
        cache.settle(state, suspended=False)

    for place in range(prompts):
        go(place)
    found = cache.facts()["memory"]["held_bytes"], mx.get_active_memory() - before
    cache.clear()
    assert mx.get_active_memory() <= before
    mx.set_cache_limit(was)
    return found


def reused_after_faults(kinds: Kinds, prompt: Sequence[int]) -> list[int]:
    """How much a prompt reuses: when the memory for keeping it ran out, when the next time it did
    not, and when the memory for bringing it back runs out."""
    import mlx.core as mx

    from models.prefix_cache import layers, prompt_cache

    cache = prompt_cache.PromptCache(lambda: make_layers(kinds), 1 << 30)
    reused: list[int] = []

    def run(*, keeps: bool, restores: bool = True) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("[malloc] Unable to allocate")

        evaluates, copies = mx.eval, layers._copy
        try:
            if not restores:
                layers.mx.eval = fail
            state = cache.begin(Run("1", 1, 0.0, 1.0, 0, 0, (), ids_of(prompt)))
            layers.mx.eval = evaluates
            check(state.layers, state.ids)
            reused.append(len(state.ids))
            _send(state, prompt[len(state.ids) :])
            if not keeps:
                layers._copy = fail
            cache.settle(state, suspended=False)
        finally:
            layers.mx.eval, layers._copy = evaluates, copies

    run(keeps=False)
    run(keeps=True)
    run(keeps=True)
    run(keeps=True, restores=False)
    run(keeps=True)
    return reused


def found_lengths(prompts: Sequence[Sequence[int]], sought: Sequence[Sequence[int]]) -> list[int]:
    """How many of the tokens sought a tree finds that has these prompts, in states of no size."""
    from models.prefix_cache.tree import PrefixTree

    tree = PrefixTree(0, can_be_cut=True)
    for prompt in prompts:
        ids = ids_of(prompt)
        _, known = tree.path("", ids)
        node = tree.ending("", ids[:known])
        assert node is not None
        if known < len(ids):
            tree.add(node, ids[known:], {}, 0.0)
    return [tree.path("", ids_of(each))[1] for each in sought]

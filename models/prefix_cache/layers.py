"""How the layers of mlx-lm's caches are kept and brought back.

Layers that grow by token are kept in *segments*: the keys and values of some tokens, [1, heads,
tokens, width] each, which can be cut and joined. All others (windows that rotate, recurrent
states) change with every token, so theirs is kept as a *point*: all of it, after one token.

What is kept are copies: mlx-lm writes into the arrays of its layers.
"""

# pyright: basic, reportMissingTypeStubs=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false
# since mlx-lm has no types.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache

Arrays = dict[str, mx.array]


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The state of the layers that do not grow by token. `meta` is JSON, and names the arrays."""

    arrays: Arrays
    meta: dict[str, Any]


def parts(layers: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The layers by name, and instead of those that are lists what is in them."""
    for place, layer in enumerate(layers):
        name = f"{prefix}{place}"
        if type(layer) is CacheList:
            yield from parts(layer.caches, f"{name}.")
        else:
            yield name, layer


def can_be_cut(layers: Sequence[Any]) -> bool:
    """Whether segments alone bring the layers back, after any token."""
    return all(type(part) is KVCache for _, part in parts(layers))


def layout(layers: Sequence[Any]) -> list[str]:
    """The kinds of the layers: what was kept of others does not fit these."""
    return [type(part).__name__ for _, part in parts(layers)]


def segment_of(layers: Sequence[Any], start: int, end: int) -> Arrays:
    """The keys and values of the tokens in [start, end), not evaluated yet."""
    return {
        f"{name}.{kind}": _copy(array[..., start:end, :])
        for name, part in _growing(layers)
        for kind, array in (("keys", part.keys), ("values", part.values))
        if array is not None
    }


def cut(segment: Arrays, at: int) -> tuple[Arrays, Arrays]:
    """The segments of the first `at` tokens and of the others, not evaluated yet."""
    return (
        {name: _copy(array[..., :at, :]) for name, array in segment.items()},
        {name: _copy(array[..., at:, :]) for name, array in segment.items()},
    )


def point_of(layers: Sequence[Any]) -> Point | None:
    """The state after the tokens computed last, not evaluated yet; None if all layers grow."""
    if can_be_cut(layers):
        return None
    arrays: Arrays = {}
    meta = {
        name: _taken_apart(_state_of(part), name, arrays)
        for name, part in parts(layers)
        if type(part) is not KVCache
    }
    return Point(arrays, meta)


def restore(
    layers: Sequence[Any], segments: Sequence[Arrays], point: Point | None, tokens: int, room: int
) -> None:
    """Make fresh layers what they were after so many tokens, all of them in the segments.

    There is room for `room` tokens before their arrays have to grow.
    """
    for name, part in _growing(layers):
        if f"{name}.keys" in segments[0]:
            part.keys = _joined([each[f"{name}.keys"] for each in segments], tokens, room)
            part.values = _joined([each[f"{name}.values"] for each in segments], tokens, room)
            part.offset = tokens
    if point is not None:
        for name, part in parts(layers):
            if name in point.meta:
                part.state = _put_together(point.meta[name], point.arrays)
    mx.eval([part.state for _, part in parts(layers)])


def bytes_of(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _growing(layers: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((name, part) for name, part in parts(layers) if type(part) is KVCache)


def _state_of(part: Any) -> Any:
    if type(part) is not RotatingKVCache or part.empty():
        return part.state
    # Without the room that it has to grow, and what it will drop before it is next used.
    keys, values, offset, keep, size, place = part.state
    held = keys.shape[2]
    if held > size:
        keys, values = (
            mx.concatenate([each[..., :keep, :], each[..., keep + held - size :, :]], axis=2)
            for each in (keys, values)
        )
        place = size
    elif held > offset:
        keys, values = (each[..., :offset, :] for each in (keys, values))
    return keys, values, offset, keep, size, place


def _taken_apart(value: Any, name: str, arrays: Arrays) -> Any:
    """The value as JSON, with the names of its arrays, which go into `arrays`."""
    if isinstance(value, mx.array):
        arrays[name] = _copy(value)
        return {"array": name}
    if isinstance(value, list | tuple):
        return [_taken_apart(each, f"{name}.{i}", arrays) for i, each in enumerate(value)]
    return value


def _put_together(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, dict):
        # Another object, since writing into this one would change the one that is kept. They
        # share their memory until then.
        return mx.array(arrays[value["array"]])
    if isinstance(value, list):
        return [_put_together(each, arrays) for each in value]
    return value


def _joined(arrays: Sequence[mx.array], tokens: int, room: int) -> mx.array:
    before = sum(each.shape[-2] for each in arrays[:-1])
    first, last = arrays[0], arrays[-1][..., : tokens - before, :]
    # Steps of the layer's own, so that it goes on writing where its tokens end.
    capacity = -(-max(room, tokens) // KVCache.step) * KVCache.step
    free = mx.zeros((*first.shape[:-2], capacity - tokens, first.shape[-1]), first.dtype)
    return mx.concatenate([*arrays[:-1], last, free], axis=-2)


def _copy(array: mx.array) -> mx.array:
    """In memory of its own, and no larger: `mx.contiguous` may hold on to what it is a part of."""
    return mx.concatenate([array[:0], array])

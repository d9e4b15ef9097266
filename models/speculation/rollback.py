"""Takes tokens back that a model has seen, exactly: for drafts that turned out to be wrong."""

# pyright: basic, reportMissingTypeStubs=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false
# since mlx-lm has no types.

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from models.prefix_cache.layers import parts

_KNOWN = (KVCache, RotatingKVCache, ArraysCache)


def can_roll_back(layers: Sequence[Any]) -> bool:
    """Whether all of the layers are of kinds that tokens can be taken back from."""
    return all(type(part) in _KNOWN for _, part in parts(layers))


class Rollback:
    """Made before a forward pass over more than one token; `drop` takes some of these back.

    Layers that grow, or rotate, lose their last tokens in place: mlx-lm keeps all that a window
    held before such a pass until the next one. Where some layers are recurrent, all can only go
    back to before the pass.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._parts = [part for _, part in parts(layers)]
        is_recurrent = any(type(part) is ArraysCache for part in self._parts)
        self._before = Mark(layers) if is_recurrent else None

    @property
    def is_whole(self) -> bool:
        """Whether the way back leads before all tokens of the pass."""
        return self._before is not None

    def drop(self, tokens: int) -> None:
        """Take back the last `tokens` of the pass; or all of them, if it `is_whole`."""
        if self._before is not None:
            self._before.go_back()
            return
        for part in self._parts:
            if type(part) is KVCache:
                part.trim(tokens)
            else:
                _drop_from_window(part, tokens)


def _drop_from_window(part: RotatingKVCache, tokens: int) -> None:
    """After such a pass its arrays are in the order of the tokens, and end with the last one."""
    kept = part.keys.shape[2] - tokens
    part.keys, part.values = part.keys[..., :kept, :], part.values[..., :kept, :]
    part.offset -= tokens
    part._idx = kept


class Mark:
    """The state of layers now, to go back to once, after any passes: for drafts that are to be
    forgotten. Layers that grow lose what came since; what others held is held on to, and copied
    when it is first written into."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._held = [(part, _held(part)) for _, part in parts(layers)]

    def go_back(self) -> None:
        for part, held in self._held:
            vars(part).update(held)


def _held(part: Any) -> dict[str, Any]:
    if type(part) is KVCache:
        return {"offset": part.offset}
    if type(part) is ArraysCache:
        return {"cache": list(part.cache)}
    names = ("keys", "values", "offset", "_idx")
    return {
        name: mx.array(value) if isinstance(value := getattr(part, name), mx.array) else value
        for name in names
    }

"""What chosen layers of a model give, taken while tokens pass through it."""

# pyright: basic, reportMissingTypeStubs=false
# since mlx-lm has no types.

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from models.kernels.glimmer import FewRowsGlimmer
from models.speculation.target import body_of


class HiddenStates:
    """Of one model, for as long as it is used: the chosen layers keep their class's work and tell
    what came of it. They are any mlx-lm model's, whose `layers` give a hidden state [1, tokens,
    hidden], or a tuple that begins with one."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._passes: list[list[mx.array]] = []
        self._first = min(layers)
        for place in sorted(layers):
            _tell(model.layers[place], partial(self._told, place))
        body = body_of(model)
        if isinstance(body, FewRowsGlimmer):  # whose few rows do not go through its layers
            body.keep(sorted(layers), self._passes.append)

    @property
    def tokens(self) -> int:
        """How many there are to take."""
        return sum(each[0].shape[1] for each in self._passes)

    def keep(self, tokens: int) -> None:
        """Only the first so many count: those after them were drafts, and wrong."""
        for place, each in enumerate(self._passes):
            rows = each[0].shape[1]
            if rows > tokens:
                self._passes[place] = [state[:, :tokens] for state in each]
            tokens -= min(rows, tokens)

    def take(self) -> mx.array | None:
        """Those of all passes since the last time, [1, tokens, layers x hidden], in the order of
        the layers; None if there are none. Not evaluated, if the passes are not."""
        rows = [mx.concatenate(each, axis=-1) for each in self._passes if each[0].shape[1]]
        self._passes.clear()
        return mx.concatenate(rows, axis=1) if rows else None

    def _told(self, place: int, state: mx.array) -> None:
        if place == self._first:
            self._passes.append([])
        self._passes[-1].append(state)


def _tell(layer: nn.Module, told: Any) -> None:
    layer.__class__ = _telling(type(layer))
    layer.told = told


@cache
def _telling(kind: type[nn.Module]) -> type[nn.Module]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        given = kind.__call__(self, *arguments, **named)
        self.told(given[0] if isinstance(given, tuple) else given)
        return given

    return type(kind.__name__, (kind,), {"__call__": call})

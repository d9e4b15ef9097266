"""A prompt cache that dies and starts again, over one folder. Runs in a process that has MLX."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from models.engine.protocol import Run, ids_of
from tests.models.prefix_cache.disk_states import tier
from tests.models.prefix_cache.fake_model import Kinds, Step, check, compute, make_layers

_EPOCH = 1e9
Use = tuple[int, int, int]  # tokens read, kept and reused


def uses_over_restarts(
    kinds: Kinds, folder: Path, steps: Sequence[Step], lasts: int, limit_bytes: int = 1 << 30
) -> list[Use]:
    """What comes of the runs, if the process ends after each `lasts` of them. Raises AssertionError
    when one of them is given what is not its own."""
    found: list[Use] = []
    for start in range(0, len(steps), lasts):
        lived = steps[start : start + lasts]
        life = _Life(kinds, folder, limit_bytes, lived[0].now)
        with patch("time.time", lambda life=life: _EPOCH + life.now):
            life.begin()
            found += [life.use(step) for step in lived]
            life.disk.close()
            assert not life.disk.facts()["dropped"]
    return found


class _Life:
    def __init__(self, kinds: Kinds, folder: Path, limit_bytes: int, now: float) -> None:
        self._kinds: Kinds = kinds
        self._folder, self._limit_bytes = folder, limit_bytes
        self.now = now

    def begin(self) -> None:
        from models.prefix_cache.layers import can_be_cut
        from models.prefix_cache.prompt_cache import PromptCache

        sliceable = can_be_cut(make_layers(self._kinds))
        self.disk = tier(self._folder, sliceable=sliceable, clock=lambda: self.now)
        self.cache = PromptCache(
            lambda: make_layers(self._kinds), self._limit_bytes, lambda: self.now
        )
        self.cache.keep_on(self.disk)

    def use(self, step: Step) -> Use:
        self.now = step.now
        run = Run("job", 1, 0.0, 1.0, 0, 0, (), ids_of(step.prompt), 0, step.scope)
        state: Any = self.cache.begin(replace(run, boundaries=step.boundaries))
        check(state.layers, state.ids)
        assert state.ids == run.prompt[: len(state.ids)]
        reused, left = len(state.ids), step.computes
        last = len(step.prompt) - 1
        while len(state.ids) < last and left > 0:
            start = len(state.ids)
            stop = min((each for each in state.stops if each > start), default=last)
            end = min(start + step.chunk, start + left, stop, last)
            compute(state.layers, step.prompt[start:end], state.ids)
            state.ids.extend(array("I", step.prompt[start:end]))
            left -= end - start
            if end in state.stops:
                self.cache.keep(state)
        self.cache.settle(state, suspended=False)
        read, kept = (state.use.read_tokens, state.use.kept_tokens) if state.use else (0, 0)
        return read, kept, reused

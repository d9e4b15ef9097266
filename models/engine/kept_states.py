"""What was computed for runs that were interrupted, kept for those that can go on from it."""

# pyright: basic, reportMissingTypeStubs=false
# since mlx-lm has no types.

from array import array
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from models.engine.protocol import Run

MAX_STATES = 3


@dataclass(slots=True, eq=False)
class RunState:
    """Where a run stands. It has one holder at a time, since going on from it changes it."""

    run: Run
    ids: "array[int]"  # whose keys and values are in `cache`
    cache: list[Any]
    drawn: mx.array | None = None  # the token after them, [1], that nobody has read yet
    suspended: bool = False

    def usable_tokens(self, run: Run) -> int:
        """How many tokens `run` need not compute if it goes on from here; 0 if it must not.

        A run that comes again has all that it can use. Another run has a suspended state only if
        it begins with all that was computed of that run's prompt, as that of a client which gave
        up and asks again; and what a cancelled run left, if it begins with half of it.
        """
        if run.scope != self.run.scope:
            return 0
        common = _common_length(self.ids, run.prompt)
        if run.job != self.run.job:
            computed_prompt = min(len(self.ids), _asked_tokens(self.run))
            if common < (computed_prompt if self.suspended else computed_prompt / 2):
                return 0
        left_to_step = 0 if run.max_tokens == 0 or self.has_drawn_for(run) else 1
        usable = min(common, len(run.prompt) - left_to_step)
        if usable < len(self.ids) and not can_trim_prompt_cache(self.cache):
            return 0
        return usable

    def hand_to(self, run: Run) -> None:
        """Make this the state of `run`, cut to what is usable."""
        excess = len(self.ids) - self.usable_tokens(run)
        if not self.has_drawn_for(run):
            self.drawn = None
        if excess:
            trim_prompt_cache(self.cache, excess)
            del self.ids[-excess:]
        self.run, self.suspended = run, False

    def has_drawn_for(self, run: Run) -> bool:
        """Whether `drawn` is the token that `run` would draw first."""
        return (
            self.drawn is not None
            and self.ids == run.prompt
            and _draw_settings(self.run) == _draw_settings(run)
        )

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.cache)


class KeptStates:
    """At most `MAX_STATES`, in at most `limit_bytes`. The oldest goes first, and those of suspended
    runs, which will come again, after the others."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._states: list[RunState] = []

    def keep(self, state: RunState) -> None:
        if not state.ids:
            return
        if len(self._states) == MAX_STATES:  # perhaps of suspended runs that nobody wants any more
            self._remove_one()
        self._states.append(state)
        while self.nbytes > self._limit_bytes:
            self._remove_one()

    def take(self, run: Run) -> RunState | None:
        """The state that saves `run` the most, now its own; None when none saves anything."""
        best = max(self._states, key=lambda state: state.usable_tokens(run), default=None)
        if best is None or best.usable_tokens(run) == 0:
            return None
        self._states.remove(best)
        best.hand_to(run)
        return best

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self._states)

    def _remove_one(self) -> None:
        self._states.remove(min(self._states, key=lambda each: each.suspended))


def _asked_tokens(run: Run) -> int:
    """The prompt's length without what the run itself generated."""
    return len(run.prompt) - run.first_index


def _draw_settings(run: Run) -> tuple[Any, ...]:
    """What a draw depends on, beside the tokens before it."""
    return run.temperature, run.top_p, run.top_k, run.seed, _asked_tokens(run), run.guide


def _common_length(one: "array[int]", other: "array[int]") -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))

"""What the tests of drafters do with MLX: runs in which a drafter with weights drafts whenever it
can, whether that pays or not. See `on_mlx`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.engine.protocol import JobEvent, Run
from tests.models.engine.on_mlx import Counting, _next_logits, _plain, generate, resident

_WIDTHS = (3, 7, 1, 5)
_RIGHT = (0, 2, 7, 1, 4)  # of the drafts, at least, where the answer is known


@dataclass(frozen=True)
class Drafted:
    """After so many `tokens` of a run, all of which are known, these were drafted."""

    tokens: tuple[int, ...]
    drafts: tuple[int, ...]


class _Eager(Counting):
    """Drafts with a drafter whenever it can, and ahead if so told. Of an `answer` that is known,
    the first drafts become right ones."""

    def __init__(
        self, drafter: Any, run: Run, seen: int, ahead: bool, answer: Sequence[int]
    ) -> None:
        from models.speculation.text import Text

        super().__init__()
        self.runs_ahead = ahead
        self._made: list[tuple[tuple[int, ...], Any]] = []
        self._drafter, self._text = drafter, Text(run.prompt)
        self._widths, self._right = itertools.cycle(_WIDTHS), itertools.cycle(_RIGHT)
        self._known = [*run.prompt, *answer]
        drafter.begin(run.scope, self._text.ids[:seen])

    def draft(
        self, token: int, most: int, forced: Sequence[int] = (), *, is_read: bool = False
    ) -> Any:
        from models.speculation.speculation import Draft

        if forced:
            return Draft(np.array(forced[:most]))
        tokens = self._text.before(token)
        ids = self._drafter.draft(tokens, min(next(self._widths), most))
        self._made.append((tuple(tokens.tolist()), ids))
        right = self._known[len(tokens) :][: min(next(self._right), len(ids))]
        return Draft(np.concatenate([np.array(right, np.uint32), ids[len(right) :]]))

    def verifying(self, draft: Any, drawn: Any) -> None:
        self._drafter.draft_ahead(draft.ids, drawn)

    @property
    def drafted(self) -> list[Drafted]:
        return [Drafted(tokens, tuple(ids.tolist())) for tokens, ids in self._made]

    def prefilled(self, tokens: int) -> None:
        self._drafter.follow(self._text.ids[:tokens])

    def went_on(self, ids: Sequence[int]) -> None:
        self._text.extend(ids)
        self._drafter.follow(self._text.ids)


def eagerly(
    folder: Path,
    drafter: Path,
    run: Run,
    after: int | None = None,
    *,
    ahead: bool = False,
    answer: Sequence[int] = (),
) -> tuple[list[JobEvent], list[Drafted]]:
    """The events of a run, suspended once there are so many of them, and all that was drafted."""
    own = resident(folder, drafter=drafter).drafter
    return _with(own, folder, drafter, run, after, ahead, answer)


def by_constants(folder: Path, ids: Sequence[int], runs: Sequence[Run]) -> list[list[JobEvent]]:
    """The events of runs for which the same tokens are drafted in each round."""
    from models.speculation.drafter import Drafter

    class Constant(Drafter):
        def draft(self, tokens: Any, width: int) -> Any:
            return np.array(ids[:width])

    return [_with(Constant(), folder, None, run, None)[0] for run in runs]


def _with(
    drafter: Any,
    folder: Path,
    weights: Path | None,
    run: Run,
    after: int | None,
    ahead: bool = False,
    answer: Sequence[int] = (),
) -> tuple[list[JobEvent], list[Drafted]]:
    model = resident(folder, drafter=weights)
    made: list[_Eager] = []

    def eager(state: Any) -> _Eager:
        made.append(_Eager(drafter, state.run, len(state.ids), ahead, answer))
        return made[-1]

    usual, model.speculation = model.speculation, eager
    try:
        events = generate(folder, run, after, "suspended", drafter=weights)
    finally:
        model.speculation = usual
    return events, made[-1].drafted


def plainly(folder: Path, drafter: Path, run: Run) -> list[JobEvent]:
    """The events of a run for which nothing is drafted, by the model that has the drafter."""
    model = resident(folder, drafter=drafter)
    usual, model.speculation = model.speculation, None
    try:
        return generate(folder, run, drafter=drafter)
    finally:
        model.speculation = usual


def states_of(folder: Path, tokens: Sequence[int], layers: Sequence[int]) -> Any:
    """What these layers of a llama give for the tokens, in one pass: [tokens, layers x hidden]."""
    import mlx.core as mx
    import numpy as np

    model = _plain(folder).model
    x, kept = model.embed_tokens(mx.array([list(tokens)])), []
    for place, layer in enumerate(model.layers):
        x = layer(x, "causal")
        if place in layers:
            kept.append(np.array(x[0]))
    return np.concatenate(kept, axis=-1)


def gap_after_going_back(folder: Path, tokens: Sequence[int], forgotten: Sequence[int]) -> float:
    """How far the logits after `tokens` are from what they would be, had the layers not seen the
    `forgotten` ones, one by one, before the last of them."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from models.speculation.rollback import Mark

    model, logits = _plain(folder), list[mx.array]()
    for seen in ((), forgotten):
        layers = make_prompt_cache(model)
        for token in tokens[:-1]:
            model(mx.array([[token]]), cache=layers)
        mark = Mark(layers)
        for token in seen:
            model(mx.array([[token]]), cache=layers)
        mark.go_back()
        logits.append(model(mx.array([[tokens[-1]]]), cache=layers))
    return mx.abs(logits[0] - logits[1]).max().item()


def next_probabilities(folder: Path, run: Run, generated: Sequence[int]) -> dict[int, float]:
    """Of each token that may come next, by the run's temperature, `top_k` and `top_p`."""
    import numpy as np

    logits = np.array(_next_logits(folder, [*run.prompt, *generated]), np.float64)
    weights = np.exp((logits - logits.max()) / run.temperature)
    order = np.argsort(-weights)[: run.top_k]
    chances = weights[order] / weights[order].sum()
    kept = chances[np.cumsum(chances) - chances < run.top_p]
    return dict(zip(order.tolist(), (kept / kept.sum()).tolist(), strict=False))

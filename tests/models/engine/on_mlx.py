"""What the engine's tests do with MLX, each in a process that loads it as the engine does."""

import itertools
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from models.engine import blas
from models.engine.protocol import Interruption, JobEvent, Run, Tokens, ids_of

OnMlx = Callable[..., Any]


def start() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    blas.preload()


def ready() -> None:
    """Returns once the process is there."""


def draw(logits: Sequence[float], places: Sequence[tuple[int, int]], **settings: Any) -> list[int]:
    """What the sampler draws at each (seed, index)."""
    import mlx.core as mx

    from models.engine.sampling import sampler

    row = mx.array([logits])
    drawn = [sampler(seed=seed, **settings)(row, index) for seed, index in places]
    return mx.concatenate(drawn).tolist()


@cache
def _resident(folder: Path, cache_bytes: int | None, drafter: Path | None) -> Any:
    from models.engine.generate import ResidentModel

    return ResidentModel(folder, lambda done, total: None, cache_bytes, drafter=drafter)


def resident(folder: Path, cache_bytes: int | None = None, drafter: Path | None = None) -> Any:
    return _resident(folder, cache_bytes, drafter)


def facts(folder: Path) -> dict[str, Any]:
    model = resident(folder)
    names = ("device", "dtype", "stored_as", "size_bytes", "chunk_tokens")
    return {name: getattr(model, name) for name in names}


_scopes = itertools.count()


def generate(
    folder: Path,
    run: Run,
    after: int | None = None,
    reason: Interruption = "cancelled",
    cache_bytes: int | None = None,
    drafter: Path | None = None,
) -> list[JobEvent]:
    """The events of a run, interrupted once there are so many of them.

    It is alone in its scope, if it has none: nothing that other tests left is of use to it.
    """
    alone = run if run.scope else replace(run, scope=f"alone {next(_scopes)}")
    return _events(resident(folder, cache_bytes, drafter), alone, after, reason)


class Counting:
    """As `Speculation`, without a policy: it counts what comes of its drafts."""

    may_draft = True
    runs_ahead = False

    def __init__(self) -> None:
        self._counts = dict.fromkeys(
            ("verified_rounds", "drafted_tokens", "accepted_tokens", "draft_pauses"), 0
        )

    def stepped(self, seconds: float | None) -> None:
        pass

    def refused(self, draft: Any) -> None:
        pass

    def verified(self, draft: Any, accepted: int, seconds: float) -> None:
        self._counts["verified_rounds"] += 1
        self._counts["drafted_tokens"] += len(draft.ids)
        self._counts["accepted_tokens"] += accepted

    def counts(self) -> dict[str, int]:
        return self._counts


class Oracle(Counting):
    """Drafts of which it is known beforehand how many are right: those of the rounds, in turns,
    given as how many are drafted and how many of them are right."""

    def __init__(self, answer: Sequence[int], rounds: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self._answer, self._rounds = list(answer), itertools.cycle(rounds)
        self._done = 0

    def draft(
        self, token: int, most: int, forced: Sequence[int] = (), *, is_read: bool = False
    ) -> Any:
        import numpy as np

        from models.speculation.speculation import Draft

        assert token == self._answer[self._done]
        drafted, right = next(self._rounds)
        after = self._answer[self._done + 1 :][:right]
        wrong = [(each + 1) % 256 for each in self._answer[self._done + 1 + right :][:1]]
        ids = (*after, *wrong, *(7 for _ in range(drafted)))[: min(drafted, most)]
        return Draft(np.array(ids, np.uint32)) if ids else None

    def prefilled(self, tokens: int) -> None:
        pass

    def went_on(self, ids: Sequence[int]) -> None:
        self._done += len(ids)


def serially(folder: Path, run: Run) -> list[JobEvent]:
    """The events of a run for which nothing is drafted."""
    return _drafting(folder, run, None)


def drafted(
    folder: Path, run: Run, answer: Sequence[int], rounds: Sequence[tuple[int, int]]
) -> list[JobEvent]:
    """The events of a run with such drafts (see `Oracle`), when its answer is known."""
    return _drafting(folder, run, lambda state: Oracle(answer, rounds))


def _drafting(folder: Path, run: Run, speculation: Any) -> list[JobEvent]:
    model = resident(folder)
    usual, model.speculation = model.speculation, speculation
    try:
        return generate(folder, run)
    finally:
        model.speculation = usual


def in_chunks_of(tokens: int, folder: Path, cache_bytes: int | None = None) -> Path:
    """The folder, whose model is from now on given its prompts in such chunks."""
    resident(folder, cache_bytes).chunk_tokens = tokens
    return folder


def logit_gaps(folder: Path, runs: Sequence[Run]) -> list[tuple[int, float]]:
    """For each run, how many tokens it need not compute, and how far the logits after all others
    are from those of the same model without a cache, in parts of the largest."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    model = resident(folder)
    gaps: list[tuple[int, float]] = []
    for run in runs:
        state = model._cache.begin(run)
        reused, ids = len(state.ids), mx.array([list(run.prompt)])
        warm = model._model(ids[:, reused:], cache=state.layers)[0]
        cold = model._model(ids, cache=make_prompt_cache(model._model))[0, reused:]
        gaps.append((reused, (mx.abs(warm - cold).max() / mx.abs(cold).max()).item()))
    return gaps


def cache_facts(folder: Path, cache_bytes: int | None = None) -> dict[str, Any]:
    return resident(folder, cache_bytes).settle()


def segments(
    folder: Path,
    run: Run,
    cuts: Sequence[int],
    between: Sequence[tuple[Run, int | None, Interruption]] = (),
) -> list[list[JobEvent]]:
    """The events of a run that is suspended after so many of them, and comes again each time.

    Meanwhile go the runs `between`, each interrupted (or not) after so many of its events.
    """
    parts: list[list[JobEvent]] = []
    for cut in (*cuts, None):
        parts.append(_events(resident(folder), run, cut, "suspended"))
        if parts[-1][-1].reason != "suspended":
            break
        run = resumed(run, parts[-1])
        for other, after, reason in between:
            _events(resident(folder), other, after, reason)
    return parts


def in_a_new_engine(folder: Path, run: Run, cut: int) -> list[list[JobEvent]]:
    """The events of a run before and after the engine was replaced."""
    first = _events(resident(folder), run, cut, "suspended")
    _resident.cache_clear()
    if first[-1].reason != "suspended":
        return [first]
    return [first, _events(resident(folder), resumed(run, first), None)]


def interleaved(folder: Path, runs: Sequence[Run], seed: int) -> list[list[JobEvent]]:
    """The events of each run, which are suspended at random points and go on in random order;
    from time to time others come in between that are cancelled, and are never seen again."""
    chance = random.Random(seed)
    left = dict(enumerate(runs))
    events: list[list[JobEvent]] = [[] for _ in runs]
    while left:
        place = chance.choice(list(left))
        run = left[place]
        if chance.random() < 0.3:
            resent = replace(run, job="another", seed=99, first_index=0)
            _events(resident(folder), resent, chance.randrange(8))
            continue
        part = _events(resident(folder), run, chance.randrange(2, 8), "suspended")
        left[place] = resumed(run, part)
        events[place] += part
        if part[-1].reason != "suspended":
            del left[place]
    return events


def resumed(run: Run, events: Sequence[JobEvent]) -> Run:
    """The run that goes on after `events`."""
    new = [token for event in events if isinstance(event, Tokens) for token in event.ids]
    return replace(
        run,
        prompt=run.prompt + ids_of(new),
        first_index=run.first_index + len(new),
        max_tokens=run.max_tokens - len(new),
    )


def _events(
    model: Any, run: Run, after: int | None, reason: Interruption = "cancelled"
) -> list[JobEvent]:
    events: list[JobEvent] = []

    def interrupted() -> Interruption | None:
        return reason if after is not None and len(events) >= after else None

    events.append(model.run(run, events.append, interrupted))
    model.settle()
    return events


def greedy(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """The best token after everything so far, `count` times, without a cache or chunks."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(_next_logits(folder, tokens).argmax()))
    return tokens[len(prompt) :]


def redraw(folder: Path, run: Run, generated: Sequence[int]) -> list[int]:
    """What would be drawn at each place of an answer by a run taken up just there."""
    from models.engine.sampling import sampler

    sample = sampler(temperature=run.temperature, top_p=run.top_p, top_k=run.top_k, seed=run.seed)
    prompt = run.prompt.tolist()
    return [
        int(sample(_next_logits(folder, [*prompt, *generated[:index]])[None], index).item())
        for index in range(len(generated))
    ]


def progress(folder: Path) -> list[tuple[int, int]]:
    """What is told of a load."""
    from models.engine.generate import ResidentModel

    told: list[tuple[int, int]] = []
    ResidentModel(folder, lambda done, total: told.append((done, total)))
    return told


def quantise(folder: Path, target: Path) -> Path:
    """`folder` as an 8-bit MLX checkpoint."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model

    model, config = load_model(folder)
    quantization = {"bits": 8, "group_size": 32}
    nn.quantize(model, **quantization)
    _copy(folder, target, {**config, "quantization": quantization})
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "mlx"})
    return target


def windowed(folder: Path, target: Path, window: int) -> Path:
    """`folder` with a first layer that sees no more than the last `window` tokens."""
    config = json.loads((folder / "config.json").read_text())
    layers = ["sliding_attention", *["full_attention"] * (config["num_hidden_layers"] - 1)]
    _copy(folder, target, {**config, "sliding_window": window, "layer_types": layers})
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target


def dequantise(folder: Path, target: Path) -> Path:
    """`folder`, an 8-bit checkpoint, as the dense one whose weights mean the same."""
    import mlx.core as mx

    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization")
    config.pop("quantization_config", None)
    stored = mx.load(str(folder / "model.safetensors"))
    dense: dict[str, mx.array] = {}
    for name, array in stored.items():
        stem = name.rpartition(".")[0]
        if name.endswith((".scales", ".biases")):
            continue
        if f"{stem}.scales" in stored:
            scales, biases = stored[f"{stem}.scales"], stored[f"{stem}.biases"]
            array = mx.dequantize(array, scales, biases, **quantization)
        dense[name] = array
    _copy(folder, target, config)
    mx.save_safetensors(str(target / "model.safetensors"), dense, {"format": "mlx"})
    return target


def run_of(prompt: Sequence[int], max_tokens: int, **more: Any) -> Run:
    """A greedy run, unless told otherwise."""
    settings = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "stop_ids": ()}
    settings |= {"job": "run_1", "prompt": ids_of(list(prompt)), **more}
    return Run(max_tokens=max_tokens, **settings)


@cache
def _plain(folder: Path) -> Any:
    from mlx_lm.utils import load_model

    return load_model(folder)[0]


def _next_logits(folder: Path, tokens: Sequence[int]) -> Any:
    import mlx.core as mx

    return _plain(folder)(mx.array([tokens]))[0, -1]


def _copy(folder: Path, target: Path, config: dict[str, Any]) -> None:
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    (target / "config.json").write_text(json.dumps(config))

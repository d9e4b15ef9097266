"""What the engine's tests do with MLX, each in a process that loads it as the engine does."""

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from models.engine import blas
from models.engine.protocol import Interruption, JobEvent, Run, ids_of

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
def resident(folder: Path) -> Any:
    from models.engine.generate import ResidentModel

    return ResidentModel(folder, lambda done, total: None)


def facts(folder: Path) -> dict[str, Any]:
    model = resident(folder)
    names = ("device", "dtype", "stored_as", "size_bytes", "chunk_tokens")
    return {name: getattr(model, name) for name in names}


def generate(folder: Path, run: Run, cancel_after: int | None = None) -> list[JobEvent]:
    """The events of a run, cancelled once there are `cancel_after` of them."""
    events: list[JobEvent] = []

    def interruption() -> Interruption | None:
        return "cancelled" if cancel_after is not None and len(events) >= cancel_after else None

    events.append(resident(folder).run(run, events.append, interruption))
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
    settings = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "stop_ids": (), **more}
    return Run("run_1", max_tokens, prompt=ids_of(list(prompt)), **settings)


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

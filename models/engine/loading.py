"""Weights from a folder into memory, in the form that this device computes fastest in."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false
# since mlx-lm has no types, and those of mlx do not know trees.

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, load_model

from models.kernels.choice import backend_here
from models.kernels.install import install


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model in memory; `kernels` are the facts of those that were installed."""

    model: nn.Module
    stored_as: str | None
    size_bytes: int
    kernels: dict[str, Any]


def device() -> str:
    """`cpu` or `gpu`."""
    return "gpu" if mx.default_device() == mx.gpu else "cpu"


def load(folder: Path, progress: Callable[[int, int], None]) -> Loaded:
    """The model in `folder`. `progress(done, total)` gets bytes. Raises what mlx-lm's loader
    raises."""
    model, config = load_model(folder, lazy=True)
    stored_as = _stored_as(config)
    if device() == "cpu":
        # Dense float32 is 10 to 20 times faster here at prefill than bfloat16 or quantised
        # products, which have no BLAS, and as fast at decode.
        model.set_dtype(mx.float32)  # scales, too: products with bfloat16 ones would be rounded
        if stored_as:
            model = dequantize_model(model)
            model.set_dtype(mx.float32)
    size = _materialise(model, progress)
    kernels = install(model, backend_here(), lambda: progress(size, size))
    return Loaded(model, stored_as, size, kernels)


def _stored_as(config: dict[str, Any]) -> str | None:
    quantization = config.get("quantization")
    if not quantization:
        return None
    return f"{quantization['bits']}-bit, groups of {quantization['group_size']}"


def _materialise(model: nn.Module, progress: Callable[[int, int], None]) -> int:
    """Read the weights, one array at a time so that progress can be told. Returns bytes."""
    arrays = [each for _, each in tree_flatten(model.parameters())]
    total, done = sum(each.nbytes for each in arrays), 0
    progress(done, total)
    for each in arrays:
        mx.eval(each)
        done += each.nbytes
        progress(done, total)
    return total

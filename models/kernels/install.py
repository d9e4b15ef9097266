"""Kernels for a model that has just been loaded."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from typing import Any

import mlx.nn as nn
from mlx_lm.models.muse_glimmer import MuseGlimmerModel

from models.kernels.choice import Backend, Choice, choose
from models.kernels.glimmer import install_steps
from models.kernels.modules import can_have_kernel, give_kernel
from models.kernels.weights import Weights


def install(
    model: nn.Module, backend: Backend | None, alive: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Give the model's quantised products the kernels that are correct and faster on this device.

    MLX compiles for a minute or two when it has not seen such shapes on this machine: `alive` is
    called meanwhile. Returns the facts for people: `products`, one for each shape, and `step`.
    """
    if backend is None:
        return {"backend": None, "products": [], "step": None}
    choices: list[Choice] = []
    step: dict[str, Any] | None = None
    done: set[int] = set()
    for module in model.modules():
        if backend.steps is not None and isinstance(module, MuseGlimmerModel):
            step, of_step, covered = install_steps(module, backend, backend.steps, alive)
            choices.extend(of_step)
            done.update(map(id, covered))
    alike: dict[tuple[int, int, int], list[tuple[nn.Module, Weights]]] = {}
    for module in _heads_and_linears(model):
        weights = Weights.of(module)
        if weights is not None and id(module) not in done and can_have_kernel(module):
            shape = (weights.outputs, weights.inputs, weights.bits)
            alike.setdefault(shape, []).append((module, weights))
    for found in alike.values():
        choice = choose(backend, [weights for _, weights in found], alive)
        choices.append(choice)
        if choice.installed:
            for module, weights in found:
                give_kernel(module, weights, backend.product)
    return {
        "backend": backend.name,
        "products": [choice.facts() for choice in choices],
        "step": step,
    }


def _heads_and_linears(model: nn.Module) -> list[nn.Module]:
    """Embeddings count where they are the output projection, too."""
    modules = model.modules()
    if any(name == "lm_head" for name, _ in model.named_modules()):
        return [each for each in modules if not isinstance(each, nn.QuantizedEmbedding)]
    return modules

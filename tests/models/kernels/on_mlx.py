"""What the tests of kernels do with MLX, in a process that loads it as the engine does."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.muse_glimmer import Model, ModelArgs
from mlx_lm.utils import dequantize_model

from models.kernels.choice import Backend, backend_here
from models.kernels.few_rows import MAX_ROWS
from models.kernels.glimmer import GlimmerSteps, take_steps
from models.kernels.install import install
from models.kernels.modules import FewRowsLinear
from models.kernels.step_kernels import Heads
from models.kernels.weights import Weights
from models.speculation.hidden_states import HiddenStates
from models.speculation.rollback import Rollback


class PlainKernels:
    """A device's kernels in MLX's own operations, and what was asked of them."""

    def __init__(self, wrong_by: float = 0.0, seconds: float = 0.5) -> None:
        self.wrong_by, self.calls = wrong_by, 0
        self._seconds, self._in_time, self._is_timed = seconds, False, False
        self.backend = Backend("plain", self.product, lambda weights, gated: True, None, self.time)

    def product(self, rows: mx.array, weights: Weights, gated: bool) -> mx.array:
        self.calls += 1
        self._is_timed = self._in_time
        product = rows.astype(mx.float32) @ weights.dense().T * (1 + self.wrong_by)
        if gated:
            gate, up = mx.split(product, 2, axis=-1)
            product = gate * mx.sigmoid(gate) * up
        return product.astype(mx.bfloat16)

    def time(self, work: Callable[[], mx.array]) -> float:
        """MLX's product takes a second, the kernel what the test says. Compiled work asks for it
        once; it is MLX's again after the next check."""
        self._in_time = True
        mx.eval(work())
        self._in_time = False
        return self._seconds if self._is_timed else 1.0

    def split(
        self, heads: Heads, taken: mx.array, place: mx.array, factors: mx.array, rotates: bool
    ) -> list[mx.array]:
        epsilon, scale, base = factors.tolist()
        ends = [heads.queries * 128, (heads.queries + heads.keys) * 128]
        ends.append(ends[1] + heads.keys * 128)
        q, k, v, _ = mx.split(taken, ends, axis=-1)
        q, k, v = (each.reshape(1, taken.shape[1], -1, 128) for each in (q, k, v))
        q = (mx.fast.rms_norm(q, None, epsilon) * scale).transpose(0, 2, 1, 3)
        k = mx.fast.rms_norm(k, None, epsilon).transpose(0, 2, 1, 3)
        if rotates:
            settings = {"traditional": False, "base": 2**base, "scale": 1.0, "offset": place}
            q, k = (mx.fast.rope(each, 128, **settings) for each in (q, k))
        q = q.transpose(0, 2, 1, 3).reshape(1, taken.shape[1], -1)
        return [q, k, v.transpose(0, 2, 1, 3)]

    def attend(
        self, heads: Heads, queries: mx.array, keys: mx.array, values: mx.array, window: int
    ) -> list[mx.array]:
        rows, count = queries.shape[1], keys.shape[2]
        q = queries.reshape(1, rows, heads.queries, 128).transpose(0, 2, 1, 3)
        own, each = mx.arange(count - rows, count)[:, None], mx.arange(count)[None]
        seen = (each <= own) & (each > own - (window or math.inf))
        out = mx.fast.scaled_dot_product_attention(q, keys, values, scale=128**-0.5, mask=seen)
        return [out.transpose(0, 2, 1, 3).reshape(1, rows, -1), mx.zeros(1)]

    def merge(self, heads: Heads, part: mx.array, extent: mx.array, taken: mx.array) -> mx.array:
        return part * mx.sigmoid(taken[..., -heads.queries * 128 :])

    def norms(
        self, given: mx.array, stream: mx.array, after: mx.array, before: mx.array, epsilons: Any
    ) -> list[mx.array]:
        first, second = epsilons.tolist()
        stream = stream + mx.fast.rms_norm(given, after, first)
        return [stream, mx.fast.rms_norm(stream, before, second)]


def glimmer(layers: int = 4, window: int = 24) -> Model:
    mx.random.seed(3)
    model = Model(
        ModelArgs(
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=512,
            sliding_window=window,
        )
    )
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=64, bits=8)
    mx.eval(model.parameters())
    return model


def linears(*sizes: tuple[int, int], bits: int = 8, group_size: int = 64) -> nn.Module:
    model = nn.Sequential(*(nn.Linear(*size) for size in sizes))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=group_size, bits=bits)
    mx.eval(model.parameters())
    return model


def installed(wrong_by: float = 0.0, seconds: float = 0.5, **how: Any) -> dict[str, Any]:
    model = linears((256, 128), (128, 128), (128, 128), **how)
    facts = install(model, PlainKernels(wrong_by, seconds).backend)
    kinds = [type(each) is FewRowsLinear for each in model.layers]
    return {"facts": facts, "have_kernels": kinds}


def on_this_device() -> dict[str, Any]:
    model = linears((256, 128))
    facts = install(model, backend_here())
    return {"facts": facts, "kind": type(model.layers[0]).__name__}


def dense() -> list[str]:
    model = nn.Sequential(nn.Linear(256, 128), nn.Linear(128, 128))
    install(model, PlainKernels(seconds=0.5).backend)
    return [type(each).__name__ for each in model.layers]


def rows_taken() -> dict[int, int]:
    """How often the kernel was asked, by the number of rows."""
    model, kernels = linears((256, 128)), PlainKernels(seconds=0.5)
    install(model, kernels.backend)
    asked = {}
    for rows in (1, MAX_ROWS, MAX_ROWS + 1):
        before = kernels.calls
        mx.eval(model(mx.zeros((1, rows, 256), mx.bfloat16)))
        asked[rows] = kernels.calls - before
    return asked


def after_an_update() -> tuple[int, float]:
    """Calls of the kernel, and the sum, once the weights are others."""
    model, kernels = linears((256, 128)), PlainKernels(seconds=0.5)
    install(model, kernels.backend)
    layer = model.layers[0]
    layer.update({"scales": mx.zeros_like(layer.scales), "biases": mx.zeros_like(layer.biases)})
    layer.bias = mx.zeros_like(layer.bias)
    before = kernels.calls
    total = model(mx.ones((1, 2, 256), mx.bfloat16)).sum().item()
    return kernels.calls - before, total


def with_steps(model: Model) -> PlainKernels:
    kernels = PlainKernels()
    take_steps(model.model, GlimmerSteps(model.model, kernels.product, kernels))
    return kernels


def same_parameters() -> bool:
    """Whether names, shapes and values are those from before weights were joined."""
    model = glimmer()
    before = {name: mx.array(each) for name, each in tree_flatten(model.parameters())}
    with_steps(model)
    after = dict(tree_flatten(model.parameters()))
    return list(before) == list(after) and all(
        mx.array_equal(before[name], after[name]).item() for name in before
    )


def glimmer_steps(prompt: int, rows: Sequence[int], drop: int = 0) -> dict[str, float]:
    """How far from a dense float32 model are one in bfloat16, and steps with plain kernels, after a
    prompt of that length; after each step of more than one row, `drop` of them are taken back."""
    tokens = (mx.arange(512) * 7 % 512)[None]
    exact, rounded, model = dequantize_model(glimmer()), dequantize_model(glimmer()), glimmer()
    exact.set_dtype(mx.float32)
    with_steps(model)
    found: list[mx.array] = []
    for each in (exact, rounded, model):
        caches, out, at = make_prompt_cache(each), [], prompt
        for start in range(0, prompt, 5):  # few at a time: MLX's own product is inexact on a CPU
            each.model(tokens[:, start : min(start + 5, prompt)], cache=caches)
        for count in rows:
            rollback = Rollback(caches)
            out.append(each.model(tokens[:, at : at + count], cache=caches).astype(mx.float32))
            mx.eval(out[-1], [cache.state[:2] for cache in caches])
            at += count
            if count > 1 and drop:
                rollback.drop(drop)
                at -= drop
        found.append(mx.concatenate(out, axis=1))
    size = mx.linalg.norm(found[0])
    bfloat16, steps = ((mx.linalg.norm(each - found[0]) / size).item() for each in found[1:])
    return {"bfloat16": bfloat16, "steps": steps}


def states_told(layers: Sequence[int]) -> tuple[list[int], float]:
    """The shape of what these layers told of a long pass and of two steps, of the latter of which
    two tokens were taken back; and how far that is from what they tell without steps, relative."""
    told: list[mx.array] = []
    for takes in (False, True):
        model = glimmer()
        if takes:
            with_steps(model)
        states, caches = HiddenStates(model, layers), make_prompt_cache(model)
        for start, end in ((0, 20), (20, 21), (21, 25)):
            model(mx.arange(start, end)[None], cache=caches)
        states.keep(23)
        told.append(states.take().astype(mx.float32))
    return list(told[1].shape), (mx.linalg.norm(told[1] - told[0]) / mx.linalg.norm(told[0])).item()


def glimmer_after_an_update() -> tuple[int, int]:
    """Calls of kernels in a step, before and after one weight of the model is another."""
    model = glimmer()
    kernels = with_steps(model)
    calls = []
    for _ in range(2):
        caches = make_prompt_cache(model)
        kernels.calls = 0
        mx.eval(model(mx.zeros((1, 2), mx.uint32), cache=caches))
        calls.append(kernels.calls)
        layer = model.model.layers[2].mlp.up_proj
        layer.scales = mx.array(layer.scales)
    return calls[0], calls[1]


def products_of_this_gpu(bits: int) -> list[dict[str, Any]]:
    """The facts of real kernels on shapes that they take."""
    return install(linears((2048, 1024), (1024, 16896), bits=bits), backend_here())["products"]

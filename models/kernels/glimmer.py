"""Muse Glimmer's decode step in fewer launches, for an NVIDIA GPU.

The modules of mlx-lm take about thirty launches a layer, and more host time than the device needs
to read the weights. Here a layer is two products with joined weights (queries, keys, values and
gates; gate and up), two others, and five small kernels; between one layer's attention and the
next, all is one compiled graph. Caches are mlx-lm's own, so whatever else works on them still does.
"""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# since neither mlx-lm nor the attributes of MLX's modules have types.

import math
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.muse_glimmer import MuseGlimmerModel

from models.kernels.choice import Backend, Choice, Product, choose
from models.kernels.few_rows import MAX_ROWS
from models.kernels.step_kernels import HEAD_SIZE, Heads, StepKernels, can_norm
from models.kernels.weights import Weights, joined

MAX_STEP_ERROR = 0.03  # relative, of the last hidden state, or twice what MLX differs from itself
_CHECKED_TOKENS = 48
_CHECKED_ROWS = (1, 4, 8)
_TIMED_STEPS = 8


class GlimmerSteps:
    """Steps of few rows through the layers of one model."""

    def __init__(self, model: MuseGlimmerModel, product: Product, kernels: StepKernels) -> None:
        """Joins weights: the model's own become views of the joined ones, so no memory is lost."""
        self._product, self._kernels = product, kernels
        self._args = args = model.args
        self._shape = Heads(args.num_attention_heads, args.num_key_value_heads)
        self._joined = [_Layer(layer) for layer in model.layers]
        self._begin = self._compiled_begin(model)
        self._between = [self._compiled_between(model, index) for index in range(len(self._joined))]
        self._windows = [
            args.sliding_window if layer.self_attn.is_sliding else 0 for layer in model.layers
        ]

    @staticmethod
    def fits(model: MuseGlimmerModel) -> bool:
        """Whether the kernels have been written for such a model."""
        args = model.args
        weights = [Weights.of(layer.self_attn.q_proj) for layer in model.layers]
        return (
            all(each is not None for each in weights)
            and args.head_dim == HEAD_SIZE
            and can_norm(args.hidden_size)
        )

    def weights(self) -> dict[bool, list[list[Weights]]]:
        """By whether they are gated: those of each of a layer's products, in all layers."""
        layers = self._joined
        plain = [[each.heads for each in layers], [each.out for each in layers]]
        plain.append([each.down for each in layers])
        return {False: plain, True: [[each.gate_up for each in layers]]}

    def is_current(self) -> bool:
        """Whether the model still has the weights that were joined."""
        return all(layer.is_current() for layer in self._joined)

    def takes(self, inputs: mx.array, cache: list[Any] | None) -> bool:
        if cache is None or inputs.ndim != 2 or inputs.shape[0] != 1:
            return False
        if inputs.shape[1] > MAX_ROWS or not self.is_current():
            return False
        offset = cache[0].offset
        return all(
            type(each) in (KVCache, RotatingKVCache) and each.offset == offset for each in cache
        )

    def __call__(
        self, inputs: mx.array, cache: list[Any], keep: Collection[int] = ()
    ) -> tuple[mx.array, list[mx.array]]:
        """The last hidden state of the tokens [1, rows], normalised, [1, rows, hidden]; and what
        the layers `keep` gave, before any norm, in order."""
        place = mx.array([cache[0].offset], dtype=mx.int32)
        stream, taken, queries, keys, values = self._begin(inputs, place)
        kept = []
        for index, (between, window) in enumerate(zip(self._between, self._windows, strict=True)):
            keys, values = cache[index].update_and_fetch(keys, values)
            parts = self._kernels.attend(self._shape, queries, keys, values, window)
            stream, taken, *heads = between(*parts, taken, stream, place)
            if index in keep:
                kept.append(stream)
            if heads:
                queries, keys, values = heads
        return taken, kept

    def _compiled_begin(self, model: MuseGlimmerModel) -> Callable[..., Any]:
        embed, args, first = model.embed_tokens, self._args, model.layers[0]
        weight = _centred(first.input_layernorm)
        mx.eval(weight)

        def begin(inputs: mx.array, place: mx.array) -> tuple[mx.array, ...]:
            stream = mx.fast.rms_norm(embed(inputs), None, args.rms_norm_eps)
            taken = mx.fast.rms_norm(stream, weight, args.rms_norm_eps)
            return stream, *self._heads(0, first, taken, place)

        return mx.compile(begin)

    def _compiled_between(self, model: MuseGlimmerModel, index: int) -> Callable[..., Any]:
        layer, own = model.layers[index], self._joined[index]
        product, kernels = self._product, self._kernels
        is_last = index + 1 == len(model.layers)
        following = model if is_last else model.layers[index + 1]
        after = _centred(layer.post_attention_layernorm)
        before = _centred(layer.pre_feedforward_layernorm)
        end = _centred(layer.post_feedforward_layernorm)
        next_norm = following.norm if is_last else following.input_layernorm
        next_weight = next_norm.weight if is_last else _centred(next_norm)
        first_epsilons = _epsilons(
            layer.post_attention_layernorm.eps, layer.pre_feedforward_layernorm.eps
        )
        second_epsilons = _epsilons(layer.post_feedforward_layernorm.eps, next_norm.eps)
        mx.eval(after, before, end, next_weight, first_epsilons, second_epsilons)

        def between(
            part: mx.array, extent: mx.array, taken: mx.array, stream: mx.array, place: mx.array
        ) -> tuple[mx.array, ...]:
            attended = kernels.merge(self._shape, part, extent, taken)
            attended = product(attended, own.out, False)
            stream, given = kernels.norms(attended, stream, after, before, first_epsilons)
            given = product(product(given, own.gate_up, True), own.down, False)
            stream, given = kernels.norms(given, stream, end, next_weight, second_epsilons)
            if is_last:
                return stream, given
            return stream, *self._heads(index + 1, following, given, place)

        return mx.compile(between)

    def _heads(
        self, index: int, layer: Any, given: mx.array, place: mx.array
    ) -> tuple[mx.array, ...]:
        attention, args = layer.self_attn, self._args
        taken = self._product(given, self._joined[index].heads, False)
        factors = mx.array(
            [attention.eps, attention.qk_scale_factor, math.log2(args.rope_theta)], mx.float32
        )
        return taken, *self._kernels.split(self._shape, taken, place, factors, attention.use_rope)


class _Layer:
    """A layer's weights, joined where they take the same rows."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._parts = [
            (attention, ("q_proj", "k_proj", "v_proj", "gate_proj")),
            (mlp, ("gate_proj", "up_proj")),
        ]
        self._views: list[tuple[nn.Module, Weights]] = []
        self.heads, self.gate_up = (_joined_in(owner, names) for owner, names in self._parts)
        for owner, names in self._parts:
            self._views += [(owner[name], Weights.of(owner[name])) for name in names]
        self.out, self.down = Weights.of(attention.o_proj), Weights.of(mlp.down_proj)
        self._views += [(attention.o_proj, self.out), (mlp.down_proj, self.down)]
        mx.clear_cache()

    def is_current(self) -> bool:
        return all(weights.are_those_of(module) for module, weights in self._views)

    def modules(self) -> list[nn.Module]:
        return [module for module, _ in self._views]


def _joined_in(owner: nn.Module, names: tuple[str, ...]) -> Weights:
    modules = [owner[name] for name in names]
    whole = joined([Weights.of(module) for module in modules])
    start = 0
    for module in modules:
        view = whole.some(start, start := start + module.weight.shape[0])
        module.weight, module.scales, module.biases = view.codes, view.scales, view.biases
    return whole


def _centred(norm: nn.Module) -> mx.array:
    return 1.0 + norm.weight


def _epsilons(first: float, second: float) -> mx.array:
    return mx.array([first, second], mx.float32)


class FewRowsGlimmer(MuseGlimmerModel):
    """The layers as they were, but for steps of few rows on caches that have a prompt."""

    steps: GlimmerSteps
    kept: Collection[int] = frozenset()
    told: Callable[[list[mx.array]], None]

    def keep(self, layers: Collection[int], told: Callable[[list[mx.array]], None]) -> None:
        """Have `told` get what these layers give, in order, in steps that do not run them."""
        self.kept, self.told = frozenset(layers), told

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        if not self.steps.takes(inputs, cache):
            return super().__call__(inputs, cache)
        taken, kept = self.steps(inputs, cache, self.kept)
        if kept:
            self.told(kept)
        return taken


def take_steps(model: MuseGlimmerModel, steps: GlimmerSteps) -> None:
    """Let the model take steps of few rows so. It stays the same object in its model."""
    model.__class__ = FewRowsGlimmer
    model.steps = steps


def install_steps(
    model: MuseGlimmerModel, backend: Backend, kernels: StepKernels, alive: Callable[[], None]
) -> tuple[dict[str, Any] | None, list[Choice], list[nn.Module]]:
    """Let the model take steps of few rows in this way if that is correct and faster.

    Returns the facts, those of the products in it, and the modules that need no other kernel.
    """
    if not GlimmerSteps.fits(model):
        return None, [], []
    steps = GlimmerSteps(model, backend.product, kernels)
    choices = [
        choose(backend, alike, alive, gated)
        for gated, products in steps.weights().items()
        for alike in products
    ]
    facts: dict[str, Any] = {"installed": False}
    if not all(choice.is_correct for choice in choices):
        return facts | {"why": "a product in it does not run here, or not well"}, choices, []
    try:
        _caches(model)  # has MLX compile its prefill
        alive()
        apart = []
        for rows in _CHECKED_ROWS:
            apart.append(_apart(model, steps, rows))
            alive()
    except Exception as problem:
        why = f"it does not run here: {' '.join(str(problem).split())[:200]}"
        return facts | {"why": why}, choices, []
    own, prefill = (max(each) for each in zip(*apart, strict=True))
    facts |= {"relative_error": round(own, 5), "prefill_error": round(prefill, 5)}
    if not own <= max(MAX_STEP_ERROR, 2 * prefill):
        return facts | {"why": "it is too far from MLX's step"}, choices, []
    stock, own = _step_ms(model, lambda *of: model(*of)), _step_ms(model, lambda *of: steps(*of)[0])
    facts |= {"stock_ms": round(stock, 2), "kernel_ms": round(own, 2)}
    if own >= stock:
        return facts | {"why": "MLX's step is faster here"}, choices, []
    take_steps(model, steps)
    why = "correct, and faster than MLX's step"
    covered = [module for layer in steps._joined for module in layer.modules()]
    return facts | {"installed": True, "why": why}, choices, covered


def _prompt(model: MuseGlimmerModel, tokens: int) -> mx.array:
    return mx.arange(tokens)[None] % model.args.vocab_size


def _caches(model: MuseGlimmerModel) -> list[Any]:
    caches = [
        RotatingKVCache(model.args.sliding_window) if layer.self_attn.is_sliding else KVCache()
        for layer in model.layers
    ]
    model(_prompt(model, _CHECKED_TOKENS), caches)
    mx.eval([each.state[:2] for each in caches])
    return caches


def _apart(model: MuseGlimmerModel, steps: GlimmerSteps, rows: int) -> tuple[float, float]:
    """How far from MLX's step this one is, and MLX's own prefill of the same tokens.

    Roundings in another order grow from layer to layer, and more so with random weights: the
    second figure says what is nothing but that."""
    tokens = mx.arange(_CHECKED_TOKENS, _CHECKED_TOKENS + rows)[None] % model.args.vocab_size
    expected = model(tokens, _caches(model)).astype(mx.float32)
    own = steps(tokens, _caches(model))[0]
    prefill = model(_prompt(model, _CHECKED_TOKENS + rows), None)[:, -rows:]
    apart = (mx.linalg.norm(each.astype(mx.float32) - expected) for each in (own, prefill))
    size = mx.linalg.norm(expected)
    found: list[Any] = [(each / size).item() for each in apart]
    return found[0], found[1]


def _step_ms(model: MuseGlimmerModel, step: Callable[..., mx.array]) -> float:
    """Of one row, with the host a step ahead, as decoding has it."""
    caches, token, times = _caches(model), mx.zeros((1, 1), mx.uint32), []
    ahead = step(token, caches)
    for _ in range(_TIMED_STEPS):
        started = time.perf_counter()
        mx.async_eval(following := step(token, caches))
        mx.eval(ahead)
        ahead = following
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:]) * 1e3

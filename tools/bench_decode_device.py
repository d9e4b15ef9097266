"""A decode step of a large model's shape on this device: `python -m tools.bench_decode_device`.

Muse Glimmer's architecture with random weights, made in memory: what steps of one, four and eight
rows cost with MLX's own operations and with the kernels of `models.kernels`, interleaved in one
run; what the host does of it; and the tokens per second of speculation whose drafts are accepted
as told, with the cost of a drafter of Glimmer's size in every round. It needs MLX, mlx-lm and
NumPy, but no checkpoint and nothing else of the service.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.muse_glimmer import Model

from models.kernels.choice import backend_here
from models.kernels.few_rows import cuda_product_of
from models.kernels.glimmer import FewRowsGlimmer
from models.kernels.install import install
from models.kernels.weights import Weights
from models.speculation.rollback import Rollback
from tools.bench_cache_device import random_glimmer

Step = Callable[[mx.array, list[Any]], mx.array]
_CHUNK_TOKENS = 2048
_ROWS = (1, 4, 8)
_DRAFTER_LAYERS = 5
_DRAFTER_BLOCK = 5


def main() -> None:
    options = _options()
    _say("device", f"{mx.default_device()}, {mx.device_info().get('device_name', '')}")
    copied = _copy_bandwidth()
    _say("copy", f"{copied:.0f} GB/s, read and written")
    model = random_glimmer(options)
    _say("model", f"{options.layers} layers of {options.hidden}, {options.bits} bits, random")
    read = _bytes_of_a_step(model)
    bound = read / copied / 1e6
    _say("weights", f"{read / 1e9:.1f} GB a step: {bound:.2f} ms at that bandwidth")
    before = mx.get_active_memory()
    started = time.perf_counter()
    facts = install(model, backend_here())
    _say("kernels installed", f"in {time.perf_counter() - started:.1f} s")
    _say("memory for them", f"{(mx.get_active_memory() - before) / 1e6:.0f} MB")
    _tell(facts)
    _tell_bandwidth(model, copied)
    steps: dict[str, Step] = {"MLX": _without_kernels(model), "kernels": model}
    for tokens in options.contexts:
        _measure_context(options, model, steps, tokens, bound)
    if options.drafter:
        _measure_rounds(options, model, options.contexts[0])


def _measure_context(
    options: argparse.Namespace, model: nn.Module, steps: dict[str, Step], tokens: int, bound: float
) -> None:
    _say("context", f"{tokens} tokens")
    caches = make_prompt_cache(model)
    prompt = mx.random.randint(0, options.vocabulary, (1, tokens))
    for start in range(0, tokens, _CHUNK_TOKENS):
        model(prompt[:, start : start + _CHUNK_TOKENS], cache=caches)
        mx.eval([each.state[:2] for each in caches])
        mx.clear_cache()
    kept = [each.state for each in caches]

    def again() -> list[Any]:
        fresh = make_prompt_cache(model)
        for each, state in zip(fresh, kept, strict=True):
            each.state = state
        return fresh

    apart = _apart(steps, prompt, again)
    _say("  logits", ", ".join(f"{rows} rows {error:.4f} apart" for rows, error in apart.items()))
    figures: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.times):
        for rows in _ROWS:
            for name, step in steps.items():
                seconds = _one_step(step, prompt[:, :rows], again())
                figures.setdefault((name, rows), []).append(seconds * 1e3)
    medians = {key: statistics.median(times[1:]) for key, times in figures.items()}
    for name in steps:
        times = [f"{rows} rows {medians[name, rows]:.2f} ms" for rows in _ROWS]
        more = [f"{medians[name, rows] / medians[name, 1]:.2f}x" for rows in _ROWS[1:]]
        _say(f"  {name}, alone", f"{', '.join(times)} ({', '.join(more)} of one)")
    decoded: dict[str, list[float]] = {}
    for _ in range(3):
        for name, step in steps.items():
            decoded.setdefault(name, []).append(_decoded(step, prompt[:, :1], again(), 24))
    ahead = {name: statistics.median(times) * 1e3 for name, times in decoded.items()}
    for name in steps:
        _say(
            f"  {name}, decoding",
            f"{ahead[name]:.2f} ms a token, {1e3 / ahead[name]:.1f} tokens/s, "
            f"{bound / ahead[name]:.0%} of the bandwidth bound",
        )
    _say("  kernels / MLX", f"{ahead['kernels'] / ahead['MLX']:.2f} decoding")
    for rows in _ROWS[1:]:
        growing = {name: _growing(step, prompt[:, :rows], again()) for name, step in steps.items()}
        told = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in growing.items())
        _say(f"  {rows} rows, growing", told)
    for name, step in steps.items():
        build, send = _host(step, prompt[:, :1], again())
        _say(f"  {name}, host", f"{build:.2f} ms to build a step's graph, {send:.2f} to send it")


def _apart(
    steps: dict[str, Step], prompt: mx.array, again: Callable[[], list[Any]]
) -> dict[int, float]:
    """How far the kernels' logits are from MLX's, relative, by rows."""
    apart = {}
    for rows in _ROWS:
        one, other = (step(prompt[:, :rows], again()) for step in steps.values())
        one, other = one.astype(mx.float32), other.astype(mx.float32)
        apart[rows] = (mx.linalg.norm(one - other) / mx.linalg.norm(one)).item()
    return apart


def _one_step(step: Step, tokens: mx.array, caches: list[Any]) -> float:
    mx.synchronize()
    started = time.perf_counter()
    mx.eval(step(tokens, caches))
    return time.perf_counter() - started


def _decoded(step: Step, token: mx.array, caches: list[Any], count: int) -> float:
    """Seconds a token, with the host a step ahead, as the engine decodes."""
    times = []
    token = mx.argmax(step(token, caches)[:, -1:], axis=-1)
    mx.async_eval(token)
    for _ in range(count):
        started = time.perf_counter()
        following = mx.argmax(step(token, caches)[:, -1:], axis=-1)
        mx.async_eval(following)
        token.item()
        token = following
        times.append(time.perf_counter() - started)
    return statistics.median(times[4:])


def _growing(step: Step, tokens: mx.array, caches: list[Any]) -> float:
    """Seconds of a step when each makes the context longer, as when all drafts are accepted."""
    times = [_one_step(step, tokens, caches) for _ in range(6)]
    return statistics.median(times[1:])


def _host(step: Step, token: mx.array, caches: list[Any]) -> tuple[float, float]:
    """Milliseconds to build the graph of one step, and to send it to the device."""
    builds, sends = [], []
    for _ in range(8):
        mx.synchronize()
        started = time.perf_counter()
        logits = step(token, caches)
        built = time.perf_counter()
        mx.async_eval(logits)
        sends.append(time.perf_counter() - built)
        builds.append(built - started)
        mx.eval(logits)
    return statistics.median(builds[1:]) * 1e3, statistics.median(sends[1:]) * 1e3


def _measure_rounds(options: argparse.Namespace, model: nn.Module, tokens: int) -> None:
    """Tokens per second when a round of one draft block has so many tokens accepted."""
    drafter = _Drafter(options.hidden, options.layers)
    weights = sum(each.nbytes for each in drafter.arrays())
    _say("drafter", f"{weights / 1e9:.2f} GB, blocks of {_DRAFTER_BLOCK}")
    drafter(mx.zeros((1, _DRAFTER_BLOCK, options.hidden), mx.bfloat16))
    for accepted in range(1, _DRAFTER_BLOCK + 1):
        caches = make_prompt_cache(model)
        prompt = mx.random.randint(0, options.vocabulary, (1, tokens))
        model(prompt, cache=caches)
        mx.eval([each.state[:2] for each in caches])
        token, times = prompt[:, -1:], []
        for _ in range(24):
            started = time.perf_counter()
            embedded = model.model.embed_tokens(
                mx.concatenate([token, prompt[:, : _DRAFTER_BLOCK - 1]], axis=1)
            )
            drafts = mx.argmax(model.lm_head(drafter(embedded)[:, 1:]), axis=-1)
            mx.async_eval(drafts)
            rollback = Rollback(caches)
            rows = mx.concatenate([token, drafts.astype(token.dtype)], axis=1)
            chosen = mx.argmax(model(rows, cache=caches), axis=-1)
            mx.eval(chosen)
            chosen.tolist()
            if accepted < _DRAFTER_BLOCK:
                rollback.drop(_DRAFTER_BLOCK - accepted)
            token = chosen[:, accepted - 1 : accepted].astype(prompt.dtype)
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times[4:])
        _say(
            f"  {accepted} accepted",
            f"{accepted / seconds:.0f} tokens/s, {seconds * 1e3:.2f} ms a round",
        )


class _Drafter:
    """The products of a block-diffusion drafter of Muse Glimmer's size, in bfloat16: one that joins
    five hidden states of the target, and five layers."""

    def __init__(self, hidden: int, layers: int) -> None:
        self._join = _dense(hidden, 5 * hidden)
        wide, keys = 3 * hidden, 1024
        self._layers = [
            [
                _dense(4096 + 2 * keys, hidden),
                _dense(hidden, 4096),
                _dense(2 * wide, hidden),
                _dense(hidden, wide),
            ]
            for _ in range(min(layers, _DRAFTER_LAYERS))
        ]

    def arrays(self) -> list[mx.array]:
        return [self._join, *(each for layer in self._layers for each in layer)]

    def __call__(self, block: mx.array) -> mx.array:
        stream = mx.concatenate([block] * 5, axis=-1) @ self._join.T
        for heads, out, gate_up, down in self._layers:
            given = mx.fast.rms_norm(stream, None, 1e-6) @ heads.T
            queries = given[..., :4096].reshape(1, -1, 32, 128).transpose(0, 2, 1, 3)
            keys = given[..., 4096:5120].reshape(1, -1, 8, 128).transpose(0, 2, 1, 3)
            values = given[..., 5120:].reshape(1, -1, 8, 128).transpose(0, 2, 1, 3)
            seen = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=128**-0.5)
            stream += seen.transpose(0, 2, 1, 3).reshape(1, -1, 4096) @ out.T
            gate, up = mx.split(mx.fast.rms_norm(stream, None, 1e-6) @ gate_up.T, 2, axis=-1)
            stream += (nn.silu(gate) * up) @ down.T
        return mx.fast.rms_norm(stream, None, 1e-6)


def _dense(outputs: int, inputs: int) -> mx.array:
    made = mx.random.normal((outputs, inputs), scale=inputs**-0.5).astype(mx.bfloat16)
    mx.eval(made)
    mx.clear_cache()
    return made


def _without_kernels(model: nn.Module) -> nn.Module:
    """mlx-lm's own modules over the same arrays."""
    plain = Model(model.args)
    plain.set_dtype(mx.bfloat16)
    head = model.lm_head
    nn.quantize(plain, group_size=head.group_size, bits=head.bits)
    return plain.update(model.parameters())


def _bytes_of_a_step(model: nn.Module) -> int:
    linears = [each for each in model.modules() if isinstance(each, nn.QuantizedLinear)]
    return sum(each.weight.nbytes + each.scales.nbytes + each.biases.nbytes for each in linears)


def _copy_bandwidth() -> float:
    """GB/s of a large copy, read and written."""
    source = mx.zeros((1 << 30,), mx.uint32)
    mx.eval(source)
    times = []
    for _ in range(4):
        mx.synchronize()
        started = time.perf_counter()
        copies = source
        for _ in range(6):
            copies = copies + 1
        mx.eval(copies)
        times.append((time.perf_counter() - started) / 6)
    del source, copies
    mx.clear_cache()
    return 2 * 4 * (1 << 30) / min(times) / 1e9


def _tell(facts: dict[str, Any]) -> None:
    for each in facts["products"]:
        shape = f"{each['outputs']} x {each['inputs']}{', gated' if each['gated'] else ''}"
        times = ", ".join(
            f"{rows} rows {each['stock'][rows]} -> {each['kernel'][rows]} us"
            for rows in each["stock"]
        )
        _say(f"  {shape}", f"{times}; error {each['relative_error']}; {each['why']}")
    _say("  step", str(facts["step"]))


def _tell_bandwidth(model: nn.Module, copied: float) -> None:
    """GB/s of each product, for those of all layers sent at once: chains that wait for each other,
    as the table of the choice has them, take what the host takes to send small kernels."""
    if not isinstance(model.model, FewRowsGlimmer):
        return
    for gated, products in model.model.steps.weights().items():
        for alike in products:
            told = []
            for rows in _ROWS:
                given = mx.random.normal((1, rows, alike[0].inputs)).astype(mx.bfloat16)
                mx.eval(given)
                seconds = _at_once(given, alike, gated)
                speed = sum(each.size_bytes for each in alike) / seconds / 1e9
                told.append(f"{rows} rows {seconds / len(alike) * 1e6:.1f} us, {speed:.0f} GB/s")
                told[-1] += f" ({speed / copied:.0%})"
            _say(f"  {alike[0].outputs} x {alike[0].inputs}", ", ".join(told))


def _at_once(given: mx.array, alike: list[Weights], gated: bool) -> float:
    product = mx.compile(lambda rows: [cuda_product_of(rows, each, gated) for each in alike])
    times = []
    for _ in range(6):
        mx.synchronize()
        started = time.perf_counter()
        mx.eval(product(given))
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def _say(what: str, how: str) -> None:
    print(f"{what + ':':26}{how}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_decode_device", description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[86, 7173], help="in tokens")
    parser.add_argument("--times", type=int, default=8, help="repetitions of each step")
    parser.add_argument("--bits", type=int, choices=[4, 8], default=8, help="of the weights")
    parser.add_argument("--no-drafter", dest="drafter", action="store_false")
    parser.add_argument("--layers", type=int, default=52)
    parser.add_argument("--hidden", type=int, default=6656)
    parser.add_argument("--vocabulary", type=int, default=202_048)
    parser.add_argument("--window", type=int, default=2048)
    return parser.parse_args()


if __name__ == "__main__":
    main()

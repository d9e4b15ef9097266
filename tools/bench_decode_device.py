"""A decode step of a large model's shape on this device: `python -m tools.bench_decode_device`.

Muse Glimmer's architecture with random weights, made in memory: what steps of one, four and eight
rows cost with MLX's own operations and with the kernels of `models.kernels`, interleaved in one
run; what the host does of it; and the tokens per second of speculation whose drafts are accepted
as told, with a DFlash2 companion of the size of Glimmer's, random as well, in every round. It needs
MLX, mlx-lm, NumPy and orjson, but no checkpoint and nothing else of the service.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.muse_glimmer import Model

from models.kernels.choice import backend_here
from models.kernels.few_rows import cuda_product_of
from models.kernels.glimmer import FewRowsGlimmer
from models.kernels.install import install
from models.kernels.weights import Weights
from models.speculation.companion import Companion
from models.speculation.companion_config import CompanionConfig
from models.speculation.dflash import DFlash
from models.speculation.rollback import Rollback
from tools.bench_cache_device import random_glimmer

Step = Callable[[mx.array, list[Any]], mx.array]
_CHUNK_TOKENS = 2048
_ROWS = (1, 4, 8)
_DRAFTER_LAYERS = 5
_DRAFTER_BLOCK = 5
_ROUNDS_IN_TURNS = 6


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
    companion = _companion(options, model)
    _say("companion", f"DFlash2, {companion.size_bytes / 1e9:.2f} GB, blocks of {_DRAFTER_BLOCK}")
    times: dict[int, list[float]] = {}
    for _ in range(_ROUNDS_IN_TURNS):
        for accepted in range(1, _DRAFTER_BLOCK + 1):
            prompt = mx.random.randint(0, options.vocabulary, (1, tokens + 1)).astype(mx.uint32)
            times.setdefault(accepted, []).extend(_rounds(companion, model, prompt, accepted))
    for accepted, each in times.items():
        whole = statistics.median(each)
        told = f"{accepted / whole:.0f} tokens/s, {whole * 1e3:.2f} ms a round"
        _say(f"  {accepted} accepted", told)


def _rounds(companion: Companion, model: nn.Module, prompt: mx.array, accepted: int) -> list[float]:
    """Seconds of each round after the prompt [1, tokens], when so many tokens are made to be
    right, as the engine goes through them."""
    ids, caches = prompt[0].tolist(), make_prompt_cache(model)
    companion.begin("", np.zeros(0, np.uint32))
    mx.eval(model(prompt[:, :-1], cache=caches))
    companion.follow(np.array(ids[:-1], np.uint32))
    times: list[float] = []
    for _ in range(16):
        started = time.perf_counter()
        drafts = companion.draft(np.array(ids, np.uint32), _DRAFTER_BLOCK - 1)
        rollback = Rollback(caches)
        rows = mx.concatenate([mx.array(ids[-1:], mx.uint32), drafts])
        chosen = mx.argmax(model(rows[None], cache=caches), axis=-1)[0]
        drawn = mx.concatenate([drafts[: accepted - 1], chosen[accepted - 1 :]])
        mx.async_eval(drawn)
        companion.draft_ahead(drafts, drawn)
        ids += drawn.tolist()[:accepted]
        if accepted < _DRAFTER_BLOCK:
            rollback.drop(_DRAFTER_BLOCK - accepted)
        companion.follow(np.array(ids[:-1], np.uint32))
        times.append(time.perf_counter() - started)
    return times[4:]


def _companion(options: argparse.Namespace, model: nn.Module) -> Companion:
    """Of the size of Muse Glimmer's DFlash2 drafter, with random weights in bfloat16."""
    taps = [round(1 + at * (options.layers - 4) / 4) for at in range(5)]
    config = CompanionConfig.of(
        {
            "architectures": ["DFlash2DraftModel"],
            "hidden_size": options.hidden,
            "intermediate_size": 3 * options.hidden,
            "num_hidden_layers": _DRAFTER_LAYERS,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_theta": 5e5,
            "rms_norm_eps": 1e-5,
            "vocab_size": options.vocabulary,
            "layer_types": ["sliding_attention"] * _DRAFTER_LAYERS,
            "sliding_window": options.window,
            "is_causal": False,
            "dflash_config": {
                "block_size": _DRAFTER_BLOCK,
                "mask_token_id": options.vocabulary - 1,
                "target_layer_ids": sorted(set(taps)),
                "conv_kernel_size": 2,
                "conv_group_size": 16,
                "selector_rank": 256,
                "selector_top_k": 16,
                "output_multiplier": options.hidden**-0.5 * 16,
                "final_logit_softcapping": 20.0,
            },
        }
    )
    network = DFlash(config)
    network.set_dtype(mx.bfloat16)
    mx.eval(network.parameters())
    mx.clear_cache()
    return Companion(config, network, None, model)


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

"""The prompt cache on a large model's shape, on this device: `python -m tools.bench_cache_device`.

Muse Glimmer's architecture with random weights, made in memory: what a first token costs when its
prompt is new, when it is in memory, and when it is on disk. It needs MLX, mlx-lm, NumPy, orjson
and safetensors, but no checkpoint and nothing else of the service.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.muse_glimmer import Model, ModelArgs

from models.boundary import Boundary
from models.engine.protocol import Run, ids_of
from models.prefix_cache.disk import DiskTier
from models.prefix_cache.layers import can_be_cut
from models.prefix_cache.prompt_cache import PromptCache


def main() -> None:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="bench-cache-", dir=options.folder))
    try:
        _measure(options, folder)
    finally:
        shutil.rmtree(folder)


def _measure(options: argparse.Namespace, folder: Path) -> None:
    _say("device", f"{mx.default_device()}, {mx.device_info().get('device_name', '')}")
    started = time.perf_counter()
    model = random_glimmer(options)
    _say("model", f"{options.layers} layers of {options.hidden}, {options.bits} bits, random")
    _say("weights", f"{mx.get_active_memory() / 1e9:.1f} GB")
    _say("made in", f"{time.perf_counter() - started:.1f} s")
    warm_up = _Bench(model, folder / "warm-up", options.chunk)
    warm_up.first_token(
        _prompt(min(options.tokens, options.chunk + 300), options.vocabulary, 0)
    )  # compiles
    warm_up.end()

    bench = _Bench(model, folder / "measured", options.chunk)
    run = _prompt(options.tokens, options.vocabulary, 1)
    _say("prompt", f"{options.tokens} tokens, chunks of {options.chunk}, three boundaries")
    mx.reset_peak_memory()
    cold, expected = bench.first_token(run)
    _say("cold first token", f"{cold:.3f} s, {options.tokens / cold:.0f} tokens/s")
    _say("peak memory", f"{mx.get_peak_memory() / 1e9:.1f} GB")
    _say("kept in memory", f"{bench.cache.facts()['memory']['held_bytes'] / 1e6:.0f} MB")

    def compared(what: str) -> None:
        seconds, logits = bench.first_token(run)
        apart = mx.abs(logits.astype(mx.float32) - expected.astype(mx.float32)).max().item()
        _say(what, f"{seconds:.3f} s, {cold / seconds:.0f}x; logits {apart:.2g} apart")

    for _ in range(options.times):
        compared("warm first token")
    started = time.perf_counter()
    bench.end()
    _say("waited for the disk", f"{time.perf_counter() - started:.3f} s")
    for where in ("page cache", "disk"):
        for _ in range(options.times):
            if where == "disk" and not _forget_pages(folder):
                return
            bench = _Bench(model, folder / "measured", options.chunk)
            compared(f"first token, {where}")
            held = bench.cache.facts()["disk"]["held_bytes"]
            seconds = bench.begin_seconds
            _say(
                "  restored",
                f"{held / 1e6:.0f} MB in {seconds:.3f} s, {held / 1e9 / seconds:.2f} GB/s",
            )
            bench.end()


class _Bench:
    """A prompt cache over a folder, as a new process has it."""

    def __init__(self, model: nn.Module, folder: Path, chunk_tokens: int) -> None:
        self._model, self._chunk_tokens = model, chunk_tokens
        sliceable = can_be_cut(make_prompt_cache(model))
        self._disk = DiskTier(folder, 64 << 30, identity="bench", sliceable=sliceable)
        self.cache = PromptCache(lambda: make_prompt_cache(model), 16 << 30)
        self.cache.keep_on(self._disk)
        self.begin_seconds = 0.0

    def first_token(self, run: Run) -> tuple[float, mx.array]:
        """Seconds to the first token, and its logits; prefills as the engine does."""
        started = time.perf_counter()
        state = self.cache.begin(run)
        self.begin_seconds = time.perf_counter() - started
        prompt, last = mx.array(run.prompt.tolist(), dtype=mx.uint32), len(run.prompt) - 1
        while (done := len(state.ids)) < last:
            stops = (stop for stop in state.stops if stop > done)
            end = min(done + self._chunk_tokens, last, *stops)
            self._model(prompt[done:end][None], cache=state.layers)
            mx.eval([each.state for each in state.layers])
            mx.clear_cache()
            state.ids.extend(run.prompt[done:end])
            if end in state.stops:
                self.cache.keep(state)
        logits = self._model(prompt[last:][None], cache=state.layers)[0, -1]
        mx.eval(logits)
        seconds = time.perf_counter() - started
        state.ids.append(run.prompt[last])
        _say("  computed", f"{len(state.ids) - state.reused_tokens} tokens")
        started = time.perf_counter()
        self.cache.settle(state, suspended=False)
        _say("  kept after it", f"in {time.perf_counter() - started:.3f} s")
        return seconds, logits

    def end(self) -> None:
        """Once all is written."""
        self._disk.close()
        self.cache.clear()
        mx.clear_cache()


def random_glimmer(options: argparse.Namespace) -> nn.Module:
    """Evaluated layer by layer, since random float32 takes four times the memory."""
    scale = options.hidden / ModelArgs.hidden_size
    model = Model(
        ModelArgs(
            hidden_size=options.hidden,
            intermediate_size=int(ModelArgs.intermediate_size * scale) // 64 * 64,
            num_hidden_layers=options.layers,
            vocab_size=options.vocabulary,
            sliding_window=options.window,
        )
    )
    model.set_dtype(mx.bfloat16)
    if options.bits < 16:
        nn.quantize(model, group_size=64, bits=options.bits)
    for layer in model.model.layers:
        mx.eval(layer.parameters())
        mx.clear_cache()
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def _prompt(tokens: int, vocabulary: int, seed: int) -> Run:
    """Random ids, marked where an agent marks: after its tools and system text, and at its ends."""
    ids = ids_of(random.Random(seed).choices(range(vocabulary), k=tokens))
    places = (tokens * 8 // 10, tokens * 9 // 10, tokens)
    marks = tuple(Boundary(place, 300) for place in places)
    return Run("bench", 1, 0.0, 1.0, 0, 0, (), ids, boundaries=marks)


def _forget_pages(folder: Path) -> bool:
    """Have the system read the files again from where they lie, if it can be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _say(what: str, how: str) -> None:
    print(f"{what + ':':26}{how}", flush=True)


def _options() -> argparse.Namespace:
    shape = ModelArgs
    parser = argparse.ArgumentParser(prog="bench_cache_device", description=__doc__)
    parser.add_argument("--tokens", type=int, default=18_681, help="of the prompt")
    parser.add_argument("--chunk", type=int, default=2048, help="tokens prefilled in one step")
    parser.add_argument("--times", type=int, default=3, help="repetitions of what is not cold")
    parser.add_argument("--bits", type=int, choices=[4, 8, 16], default=8, help="of the weights")
    parser.add_argument("--layers", type=int, default=shape.num_hidden_layers)
    parser.add_argument("--hidden", type=int, default=shape.hidden_size)
    parser.add_argument("--vocabulary", type=int, default=shape.vocab_size)
    parser.add_argument("--window", type=int, default=shape.sliding_window)
    parser.add_argument("--folder", type=Path, help="where files are kept meanwhile")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Prefill and decode with one resident model. Runs in the engine process, on its one MLX thread."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false
# since mlx-lm has no types, and those of mlx do not know trees and buffers.

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import dequantize_model, load_model

from models.engine.protocol import (
    Finished,
    Interruption,
    Prefill,
    Reason,
    Run,
    Stats,
    Tokens,
    ids_of,
)
from models.engine.sampling import sampler

Emit = Callable[[Prefill | Tokens], None]

# Measured: larger chunks gain nothing on two CPU cores and delay cancellation; a GPU wants work.
CHUNK_TOKENS = {"cpu": 256, "gpu": 2048}
_CLEAR_CACHE_EVERY_STEPS = 256  # as mlx-lm: freed buffers pile up slowly while decoding


class ResidentModel:
    """A model in memory, and how it is run on this device."""

    def __init__(self, folder: Path, progress: Callable[[int, int], None]) -> None:
        """Load `folder`. `progress(done, total)` gets bytes. Raises what mlx-lm's loader raises."""
        self.device = "gpu" if mx.default_device() == mx.gpu else "cpu"
        self.chunk_tokens = CHUNK_TOKENS[self.device]
        self._model, config = load_model(folder, lazy=True)
        self.stored_as = _stored_as(config)
        if self.device == "cpu":
            # Dense float32 is 10 to 20 times faster here at prefill than bfloat16 or quantised
            # products, which have no BLAS, and as fast at decode.
            self._model = dequantize_model(self._model) if self.stored_as else self._model
            self._model.set_dtype(mx.float32)
        self.size_bytes = _materialise(self._model, progress)

    @property
    def dtype(self) -> str:
        """Of what is computed; the codes of quantised weights are integers."""
        arrays = (each for _, each in tree_flatten(self._model.parameters()))
        floats = (each for each in arrays if mx.issubdtype(each.dtype, mx.floating))
        return str(next(floats).dtype).removeprefix("mlx.core.")

    def warm_up(self) -> None:
        """Run each kind of step once, so that the first job does not pay for compilation."""
        prompt = ids_of([0] * (self.chunk_tokens + 1))
        run = Run("warm-up", 2, 1.0, 0.9, 10, 0, (), prompt)
        self.run(run, lambda event: None, lambda: None)

    def run(
        self, run: Run, emit: Emit, interruption: Callable[[], Interruption | None]
    ) -> Finished:
        """Prefill and decode one job; `interruption` is asked between any two steps."""
        return _Generation(self._model, self.chunk_tokens, run, emit, interruption).finish()


class _Generation:
    def __init__(
        self,
        model: nn.Module,
        chunk_tokens: int,
        run: Run,
        emit: Emit,
        interruption: Callable[[], Interruption | None],
    ) -> None:
        self.model, self.chunk_tokens, self.job = model, chunk_tokens, run
        self.emit, self.interruption = emit, interruption
        self.cache: list[Any] = make_prompt_cache(model)
        self.sample = sampler(
            temperature=run.temperature, top_p=run.top_p, top_k=run.top_k, seed=run.seed
        )
        self.prompt = mx.array(memoryview(run.prompt), dtype=mx.uint32)
        self.prefilled = self.generated = 0
        self.longest_step = 0.0
        mx.reset_peak_memory()
        self.started = self.step_started = time.perf_counter()
        self.decode_started: float | None = None
        self.first_token_at: float | None = None

    def finish(self) -> Finished:
        reason = self.prefill() or self.decode()
        ended = time.perf_counter()
        prefill_ended = self.decode_started or ended
        stats = Stats(
            prefill_seconds=prefill_ended - self.started,
            decode_seconds=ended - prefill_ended,
            first_token_seconds=self.first_token_at and self.first_token_at - self.started,
            longest_step_seconds=self.longest_step,
            prefilled_tokens=self.prefilled,
            generated_tokens=self.generated,
            peak_memory_bytes=mx.get_peak_memory(),
        )
        return Finished(self.job.job, reason, stats)

    def prefill(self) -> Reason | None:
        """All of the prompt but its last token, whose step gives the first logits."""
        total = len(self.job.prompt)
        self.emit(Prefill(self.job.job, 0, total))
        whole = total if self.job.max_tokens == 0 else total - 1
        while self.prefilled < whole:
            if interruption := self.interruption():
                return interruption
            end = min(self.prefilled + self.chunk_tokens, whole)
            self.model(self.prompt[self.prefilled : end][None], cache=self.cache)
            mx.eval([each.state for each in self.cache])
            mx.clear_cache()
            self.prefilled = end
            self._step_ended()
            self.emit(Prefill(self.job.job, end, total))
        return "length" if self.job.max_tokens == 0 else None

    def decode(self) -> Reason:
        self.decode_started = time.perf_counter()
        if interruption := self.interruption():
            return interruption
        token = self._step(self.prompt[-1:], 0)
        self.prefilled += 1
        for index in range(self.job.max_tokens):
            if interruption := self.interruption():
                return interruption
            # The next step is queued before this one's token is read, so the device never waits.
            following = token
            if index + 1 < self.job.max_tokens:
                following = self._step(token, index + 1)
            value = int(token.item())
            self._step_ended()
            self.first_token_at = self.first_token_at or time.perf_counter()
            self.generated += 1
            self.emit(Tokens(self.job.job, ids_of([value])))
            if value in self.job.stop_ids:
                return "stop"
            if index % _CLEAR_CACHE_EVERY_STEPS == 0:
                mx.clear_cache()
            token = following
        return "length"

    def _step(self, token: mx.array, index: int) -> mx.array:
        logits = self.model(token[None], cache=self.cache)[:, -1, :]
        sampled = self.sample(logits, index)
        mx.async_eval(sampled)
        return sampled

    def _step_ended(self) -> None:
        now = time.perf_counter()
        self.longest_step = max(self.longest_step, now - self.step_started)
        self.step_started = now


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

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

from models.engine.kept_states import KeptStates, RunState
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
Interrupted = Callable[[], Interruption | None]

# Measured: larger chunks gain nothing on two CPU cores and delay cancellation; a GPU wants work.
CHUNK_TOKENS = {"cpu": 256, "gpu": 2048}
_KEPT_SHARE_OF_MEMORY = 1 / 8
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
        self._kept = KeptStates(int(mx.get_memory_limit() * _KEPT_SHARE_OF_MEMORY))

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

    def run(self, run: Run, emit: Emit, interrupted: Interrupted) -> Finished:
        """Prefill and decode one job; `interrupted` is asked between any two steps.

        What was computed for an interrupted run is kept, and taken up by the run that can use it.
        """
        state = self._kept.take(run) or RunState(run, ids_of(), make_prompt_cache(self._model))
        finished = _Generation(self._model, self.chunk_tokens, state, emit, interrupted).finish()
        if finished.reason in ("cancelled", "suspended"):
            state.suspended = finished.reason == "suspended"
            self._kept.keep(state)
        return finished


class _Generation:
    def __init__(
        self,
        model: nn.Module,
        chunk_tokens: int,
        state: RunState,
        emit: Emit,
        interrupted: Interrupted,
    ) -> None:
        self.model, self.chunk_tokens, self.state = model, chunk_tokens, state
        self.emit, self.interrupted = emit, interrupted
        self.job = run = state.run
        self.sample = sampler(
            temperature=run.temperature, top_p=run.top_p, top_k=run.top_k, seed=run.seed
        )
        self.prompt = mx.array(memoryview(run.prompt), dtype=mx.uint32)
        self.reused = len(state.ids)
        self.generated = 0
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
            prefilled_tokens=min(len(self.state.ids), len(self.job.prompt)) - self.reused,
            generated_tokens=self.generated,
            peak_memory_bytes=mx.get_peak_memory(),
            reused_tokens=self.reused,
        )
        return Finished(self.job.job, reason, stats)

    def prefill(self) -> Reason | None:
        """All of the prompt but its last token, whose step gives the first logits."""
        total = len(self.job.prompt)
        whole = total if self.job.max_tokens == 0 else total - 1
        self.emit(Prefill(self.job.job, self.reused, total))
        while (done := len(self.state.ids)) < whole:
            if interruption := self.interrupted():
                return interruption
            end = min(done + self.chunk_tokens, whole)
            self.model(self.prompt[done:end][None], cache=self.state.cache)
            mx.eval([each.state for each in self.state.cache])
            mx.clear_cache()
            self.state.ids.extend(self.job.prompt[done:end])
            self._step_ended()
            self.emit(Prefill(self.job.job, end, total))
        return "length" if self.job.max_tokens == 0 else None

    def decode(self) -> Reason:
        """Between two rounds, `ids` are all that was sent, and `drawn` is the token to send next:
        unless this is the first round, and no state was taken up that had it."""
        self.decode_started = time.perf_counter()
        state, first = self.state, self.job.first_index
        for index in range(first, first + self.job.max_tokens):
            if interruption := self.interrupted():
                return interruption
            if state.drawn is None:
                state.drawn = self._step(self.prompt[-1:], index)
                state.ids.append(self.job.prompt[-1])
            token = state.drawn
            # The next step is queued before this one's token is read, so the device never waits.
            if index + 1 < first + self.job.max_tokens:
                state.drawn = self._step(token, index + 1)
            value = int(token.item())
            state.ids.append(value)
            self._step_ended()
            self.first_token_at = self.first_token_at or time.perf_counter()
            self.generated += 1
            self.emit(Tokens(self.job.job, ids_of([value])))
            if value in self.job.stop_ids:
                return "stop"
            if index % _CLEAR_CACHE_EVERY_STEPS == 0:
                mx.clear_cache()
        return "length"

    def _step(self, token: mx.array, index: int) -> mx.array:
        logits = self.model(token[None], cache=self.state.cache)[:, -1, :]
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

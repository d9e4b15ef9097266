"""Prefill and decode with one resident model. Runs in the engine process, on its one MLX thread."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false
# since mlx-lm has no types, and those of mlx do not know trees and buffers.

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from models.engine.decoding import Decoding
from models.engine.drafting import load_drafter
from models.engine.loading import device, load
from models.engine.protocol import (
    CacheUse,
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
from models.grammar.guide import Guide
from models.grammar.guide_spec import GuideSpec
from models.grammar.vocabulary import Vocabulary
from models.prefix_cache.disk import DiskTier
from models.prefix_cache.disk_identity import identity_of
from models.prefix_cache.layers import can_be_cut, layout
from models.prefix_cache.prompt_cache import PromptCache, RunState
from models.speculation.drafter import Drafter
from models.speculation.rollback import can_roll_back
from models.speculation.speculation import Speculation
from models.speculation.step_costs import StepCosts

Emit = Callable[[CacheUse | Prefill | Tokens], None]
Interrupted = Callable[[], Interruption | None]

# Measured: larger chunks gain nothing on two CPU cores and delay cancellation; a GPU wants work.
CHUNK_TOKENS = {"cpu": 256, "gpu": 2048}
_KEPT_SHARE_OF_MEMORY = 1 / 8
_CLEAR_CACHE_EVERY_ROUNDS = 256  # as mlx-lm: freed buffers pile up slowly while decoding


class ResidentModel:
    """A model in memory, and how it is run on this device."""

    def __init__(
        self,
        folder: Path,
        progress: Callable[[int, int], None],
        cache_bytes: int | None = None,
        *,
        speculates: bool = True,
        drafter: Path | None = None,
    ) -> None:
        """Load `folder`. `progress(done, total)` gets bytes. States of prompts are kept in at most
        `cache_bytes`, or a share of the memory. Unless it `speculates`, nothing is drafted; the
        weights in the folder `drafter` help with that. Raises what mlx-lm's loader raises, and
        ValueError for a drafter that does not fit."""
        self._folder = folder
        self._vocabulary: Vocabulary | None = None  # made for the first run that is guided
        self.device = device()
        self.chunk_tokens = CHUNK_TOKENS[self.device]
        loaded = load(folder, progress)
        self._model, self.stored_as = loaded.model, loaded.stored_as
        self.size_bytes = size = loaded.size_bytes
        self.kernels = loaded.kernels
        if cache_bytes is None:
            cache_bytes = int(mx.get_memory_limit() * _KEPT_SHARE_OF_MEMORY)
        self._cache = PromptCache(lambda: make_prompt_cache(self._model), cache_bytes)
        self._unsettled: tuple[RunState, bool] | None = None
        self.speculation: Callable[[RunState], Speculation] | None = None
        self.drafter: Drafter | None = None  # that has weights
        self.drafter_facts: dict[str, Any] | None = None
        if speculates and can_roll_back(make_prompt_cache(self._model)):
            costs = StepCosts()
            if drafter is not None:
                self.drafter, self.drafter_facts = load_drafter(
                    drafter, self._model, self.chunk_tokens, lambda: progress(size, size)
                )
            self.speculation = lambda state: Speculation(
                state.run.prompt,
                costs,
                self.drafter,
                scope=state.run.scope,
                seen=len(state.ids),
                runs_ahead=self.device == "gpu",
            )

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
        self.settle()
        self._cache.clear()

    def keep_on_disk(self, cache_folder: Path, limit_bytes: int, weights: str | None) -> None:
        """Keep states of prompts there, too, for this model, whose weights are called `weights`."""
        layers = make_prompt_cache(self._model)
        disk = DiskTier(
            cache_folder,
            limit_bytes,
            identity=identity_of(self._folder, weights, self.dtype, layout(layers)),
            sliceable=can_be_cut(layers),
        )
        self._cache.keep_on(disk)

    def run(self, run: Run, emit: Emit, interrupted: Interrupted) -> Finished:
        """Prefill and decode one job; `interrupted` is asked between any two steps.

        It goes on from what the prompt cache has. Then comes `settle`.
        """
        guide = self._guide(run)
        state = self._cache.begin(run)
        if state.use is not None:
            emit(state.use)
        speculation = self.speculation(state) if self.speculation else None
        generation = _Generation(
            self._model,
            self.chunk_tokens,
            self._cache,
            state,
            guide,
            speculation,
            emit,
            interrupted,
        )
        finished = generation.finish()
        self._unsettled = state, finished.reason == "suspended"
        return finished

    def settle(self) -> dict[str, Any]:
        """Keep what the last run computed, which takes a moment. Returns the facts of the cache."""
        if self._unsettled is not None:
            self._cache.settle(*self._unsettled)
            self._unsettled = None
        return self._cache.facts()

    def close(self) -> None:
        """Return once all that is kept on disk is there."""
        self._cache.close()

    def _guide(self, run: Run) -> Guide | None:
        """Where the run stands; None unless it is guided. Raises GuideError."""
        if run.guide is None:
            return None
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self._folder)
        guide = Guide(GuideSpec.from_json(run.guide), self._vocabulary, run.stop_ids)
        for token in run.prompt[len(run.prompt) - run.first_index :]:
            guide.advance(token)
        return guide


class _Generation:
    def __init__(
        self,
        model: nn.Module,
        chunk_tokens: int,
        cache: PromptCache,
        state: RunState,
        guide: Guide | None,
        speculation: Speculation | None,
        emit: Emit,
        interrupted: Interrupted,
    ) -> None:
        self.model, self.chunk_tokens, self.cache, self.state = model, chunk_tokens, cache, state
        self.guide, self.speculation = guide, speculation
        self.emit, self.interrupted = emit, interrupted
        self.job = run = state.run
        self.sample = sampler(
            temperature=run.temperature, top_p=run.top_p, top_k=run.top_k, seed=run.seed
        )
        self.prompt = mx.array(memoryview(run.prompt), dtype=mx.uint32)
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
        reused = self.state.reused_tokens
        stats = Stats(
            prefill_seconds=prefill_ended - self.started,
            decode_seconds=ended - prefill_ended,
            first_token_seconds=self.first_token_at and self.first_token_at - self.started,
            longest_step_seconds=self.longest_step,
            prefilled_tokens=min(len(self.state.ids), len(self.job.prompt))
            - self.state.reused_tokens,
            generated_tokens=self.generated,
            peak_memory_bytes=mx.get_peak_memory(),
            reused_tokens=reused,
        )
        if self.speculation is not None:
            stats = replace(stats, **self.speculation.counts())
        return Finished(self.job.job, reason, stats)

    def prefill(self) -> Reason | None:
        """All of the prompt but its last token, whose step gives the first logits."""
        state, total = self.state, len(self.job.prompt)
        self.emit(Prefill(self.job.job, len(state.ids), total))
        while (done := len(state.ids)) < total - 1:
            if interruption := self.interrupted():
                return interruption
            end = min(done + self.chunk_tokens, total - 1, *(s for s in state.stops if s > done))
            self.model(self.prompt[done:end][None], cache=state.layers)
            mx.eval([each.state for each in state.layers])
            mx.clear_cache()
            state.ids.extend(self.job.prompt[done:end])
            if end in state.stops:
                self.cache.keep(state)
            if self.speculation is not None:
                self.speculation.prefilled(end)
            self._step_ended()
            self.emit(Prefill(self.job.job, end, total))
        return "length" if self.job.max_tokens == 0 else None

    def decode(self) -> Reason:
        self.decode_started = time.perf_counter()
        decoding = Decoding(self.model, self.state, self.sample, self.guide, self.speculation)
        rounds = 0
        while not decoding.is_over:
            if interruption := self.interrupted():
                return interruption
            ids = decoding.round()
            self._step_ended()
            self.first_token_at = self.first_token_at or time.perf_counter()
            self.generated += len(ids)
            self.emit(Tokens(self.job.job, ids_of(ids)))
            if rounds % _CLEAR_CACHE_EVERY_ROUNDS == 0:
                mx.clear_cache()
            rounds += 1
        return "stop" if decoding.stopped else "length"

    def _step_ended(self) -> None:
        now = time.perf_counter()
        self.longest_step = max(self.longest_step, now - self.step_started)
        self.step_started = now

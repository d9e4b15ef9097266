"""Drafts of a smaller model that has the same vocabulary: greedy, token by token."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false
# since mlx-lm has no types.

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from models.prefix_cache.layers import can_be_cut
from models.speculation.drafter import Drafter, Ids, Offer
from models.speculation.rollback import Mark
from models.speculation.target import rows_of

_CHANCE = 0.7  # of a draft being right, so long as nothing was measured
_MOST_DRAFTS = 15
_PENDING_TOKENS = 64  # that are read before a draft asks for it
# It reads no more of what the target had from the prompt cache: drafts need no more, and the
# answer would wait for it.
_LAST_TOKENS = 1024


class DraftModel(Drafter):
    """Its layers have the state after tokens that are certain. Drafts are forgotten again, and
    those that were right are read with what comes after them, in one pass: so it may have layers
    of any kind that can be taken back to an earlier state."""

    def __init__(self, model: nn.Module, target: nn.Module, chunk_tokens: int) -> None:
        """What is to be read is read in chunks. The models may differ in how many rows pad their
        vocabularies."""
        self._model, self._chunk_tokens = model, chunk_tokens
        self._last_id = rows_of(model) - 1
        self._choices = min(rows_of(model), rows_of(target))
        self._scope = ""
        self._tokens: Ids = np.zeros(0, np.uint32)  # of which it has read those up to the end
        self._restart(0)

    def begin(self, scope: str, tokens: Ids) -> None:
        known = _alike(self._tokens[: self._end], tokens) if scope == self._scope else 0
        if known < self._end:
            if known > self._first and can_be_cut(self._layers):
                for layer in self._layers:
                    layer.trim(self._end - known)
                self._end = known
            else:
                self._restart(0)
        self._scope, self._tokens = scope, tokens

    def follow(self, tokens: Ids) -> None:
        self._tokens = tokens
        if len(tokens) - self._end >= _PENDING_TOKENS:
            mx.async_eval(self._read(tokens))

    def offer(self, tokens: Ids) -> Offer | None:
        return Offer(self, "draft model", _CHANCE, _MOST_DRAFTS, passes_each=1)

    def draft(self, tokens: Ids, width: int) -> mx.array:
        self._tokens = tokens
        best = self._best(self._read(tokens))
        drafts, mark = [best], Mark(self._layers)
        while len(drafts) < width:
            best = self._best(self._model(best[None], cache=self._layers)[:, -1])
            drafts.append(best)
        ids = mx.concatenate(drafts)
        mx.async_eval(ids)
        mark.go_back()
        return ids

    def _best(self, logits: mx.array) -> mx.array:
        return mx.argmax(logits[:, : self._choices], axis=-1)

    def _read(self, tokens: Ids) -> mx.array:
        """The logits after these tokens, [1, vocabulary]."""
        if len(tokens) - self._end > max(_LAST_TOKENS, self._chunk_tokens):
            self._restart(len(tokens) - _LAST_TOKENS)
        logits = mx.array([])
        while self._end < len(tokens):
            mx.async_eval(logits)
            chunk = tokens[self._end : self._end + self._chunk_tokens]
            ids = mx.array(np.minimum(chunk, self._last_id))
            logits = self._model(ids[None], cache=self._layers)[:, -1]
            self._end += len(chunk)
        return logits

    def _restart(self, position: int) -> None:
        self._layers = make_prompt_cache(self._model)
        self._first = self._end = position  # of what it has read, which ends before the latter


def _alike(one: Ids, other: Ids) -> int:
    """How many tokens both begin with."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count

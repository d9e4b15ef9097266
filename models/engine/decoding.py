"""The tokens of an answer, round by round: one a round, or as many drafts as turn out to be right.

Runs in the engine process.
"""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false
# since mlx-lm has no types, and those of mlx do not know buffers.

import time
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from models.engine.sampling import Sampler
from models.grammar.guide import Guide, Mask
from models.prefix_cache.prompt_cache import RunState
from models.speculation.rollback import Rollback
from models.speculation.speculation import Draft, Speculation


class Decoding:
    """Between two rounds, the state is that after all tokens so far, and `drawn` the next one:
    unless this is the first round, and no state was taken up that has its logits.

    A draft is right if it is what the sampler draws in its place, from the logits and by the
    guide's mask that belong there, so drafts change no token. For a draft that is certain, this is
    the rejection rule of Leviathan et al. (2023, arXiv 2211.17192), with the randomness of each
    place fixed beforehand.
    """

    def __init__(
        self,
        model: nn.Module,
        state: RunState,
        sample: Sampler,
        guide: Guide | None,
        speculation: Speculation | None,
    ) -> None:
        self._model, self._state, self._sample, self._guide = model, state, sample, guide
        self._speculation = speculation
        self._stop_ids = state.run.stop_ids
        self._index = state.run.first_index  # of the next token
        self._end = self._index + state.run.max_tokens
        self._drawn: mx.array | None = None
        self._stepped_at: float | None = None  # the end of the round before, if it was a step
        self.stopped = False

    @property
    def is_over(self) -> bool:
        return self.stopped or self._index == self._end

    def round(self) -> list[int]:
        """The next tokens, one at least."""
        state = self._state
        if state.logits is None:
            last = state.run.prompt[-1]
            state.logits = self._pass(mx.array([last], mx.uint32))
            state.ids.append(last)
        token = self._draw(state.logits, self._index) if self._drawn is None else self._drawn
        draft = self._draft(token)
        ids = self._step(token) if draft is None else self._verify(int(token.item()), draft)
        self._index += len(ids)
        if self._speculation is not None:
            self._speculation.went_on(ids)
        return ids

    def _step(self, token: mx.array) -> list[int]:
        """The next token. The step after it is queued before it is read, so that the device never
        waits. So is the draw, unless it waits for what the guide makes of this token."""
        state, logits, ahead = self._state, None, None
        if self._index + 1 < self._end:
            logits = self._model(token[None], cache=state.layers)[:, -1, :]
            if self._guide is None or self._guide.is_free:
                ahead = self._sample(logits, self._index + 1)
            mx.async_eval(logits if ahead is None else ahead)
        value = int(token.item())
        self.stopped = value in self._stop_ids
        if logits is not None:
            state.ids.append(value)  # the last of all is never sent
            state.logits = logits
            if not self.stopped:
                self._drawn = self._draw_after(value, logits, self._index + 1, ahead)
        if self._speculation is not None:
            # Two steps in a row are a step apart; after another round, the device had nothing yet.
            now, before = time.perf_counter(), self._stepped_at
            self._speculation.stepped(None if before is None else now - before)
            self._stepped_at = now
        return [value]

    def _draft(self, token: mx.array) -> Draft | None:
        """What may come after the next token, which is read only where something may."""
        most = self._end - self._index - 1
        if self._speculation is None or most < 1:
            return None
        guide = self._guide
        if not (guide and guide.foresees) and not self._speculation.may_draft:
            return None
        value = int(token.item())
        if value in self._stop_ids:
            return None
        if guide is None:
            return self._speculation.draft(value, most)
        draft = self._speculation.draft(value, most, guide.forced_after(value), is_read=True)
        if draft is None:
            return None
        ids = draft.ids.tolist()
        if allowed := guide.allowed_after(value, ids):
            return replace(draft, ids=np.array(ids[:allowed], np.uint32))
        self._speculation.refused(draft)
        self._stepped_at = None  # drafting was no part of a step
        return None

    def _verify(self, value: int, draft: Draft) -> list[int]:
        """The next token, and those of the draft that are right, by one pass over all of them."""
        assert self._speculation is not None
        state, started = self._state, time.perf_counter()
        rollback = Rollback(state.layers)
        logits = self._pass(mx.concatenate([mx.array([value], mx.uint32), mx.array(draft.ids)]))
        read = self._read_all(logits, draft)
        drafts, ids, accepted = draft.ids.tolist(), [value], 0
        while True:
            row, ahead = logits[accepted : accepted + 1], None
            if read is not None:
                ahead = mx.array(read[accepted : accepted + 1], mx.uint32)
            drawn = self._draw_after(ids[-1], row, self._index + len(ids), ahead)
            token = int(drawn.item())
            if accepted == len(drafts) or token != drafts[accepted]:
                break
            ids.append(token)
            accepted += 1
            self.stopped = token in self._stop_ids
            if self.stopped:
                break
        if wrong := len(drafts) - accepted:
            rollback.drop(wrong)
            if rollback.is_whole:
                logits = self._pass(mx.array(ids, mx.uint32))
                mx.eval(logits)  # it is part of what this round takes
        state.ids.extend(ids)
        state.logits, self._drawn = logits[accepted : accepted + 1], drawn
        self._speculation.verified(draft, accepted, time.perf_counter() - started)
        self._stepped_at = None
        return ids

    def _read_all(self, logits: mx.array, draft: Draft) -> list[int] | None:
        """The draws from all rows of a verification, where that takes no longer than from one: on
        a device that goes on with the next drafts while these are read. None elsewhere, and where
        each waits for what the guide makes of the one before."""
        assert self._speculation is not None
        if not self._speculation.runs_ahead or not (self._guide is None or self._guide.is_free):
            mx.async_eval(logits)
            return None
        drawn = self._sample(logits, self._index + 1)
        mx.async_eval(logits, drawn)
        self._speculation.verifying(draft, drawn)
        return np.asarray(drawn).tolist()

    def _pass(self, ids: mx.array) -> mx.array:
        """The logits after each of the tokens, [tokens, vocabulary]."""
        return self._model(ids[None], cache=self._state.layers)[0]

    def _draw_after(
        self, token: int, logits: mx.array, index: int, ahead: mx.array | None = None
    ) -> mx.array:
        """The token at `index`, [1], after that one, of which the guide has not heard."""
        if self._guide is not None:
            self._guide.advance(token)
        return self._draw(logits, index, ahead)

    def _draw(self, logits: mx.array, index: int, ahead: mx.array | None = None) -> mx.array:
        """The token at `index`, [1]. `ahead` was drawn from all tokens, in case all may come."""
        if self._guide is None or self._guide.is_free:
            drawn = self._sample(logits, index) if ahead is None else ahead
        elif (forced := self._guide.forced()) is not None:
            drawn = mx.array([forced], dtype=mx.uint32)
        else:
            drawn = self._sample(_masked(logits, self._guide.mask()), index)
        mx.async_eval(drawn)
        return drawn


def _masked(logits: mx.array, mask: Mask) -> mx.array:
    """The logits of what may come; rows that pad the vocabulary may not."""
    whole = np.zeros(logits.shape[-1], np.bool_)
    whole[: len(mask)] = mask[: len(whole)]
    return mx.where(mx.array(whole), logits, -mx.inf)

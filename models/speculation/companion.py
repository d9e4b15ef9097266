"""Drafts of a companion: DFlash's, from the hidden states of the model that it was trained for."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportCallIssue=false
# since mlx-lm has no types, and those of mlx do not know trees.

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import orjson
from mlx.utils import tree_flatten

from models.speculation.companion_config import CompanionConfig
from models.speculation.dflash import DFlash
from models.speculation.drafter import Drafter, Drafts, Ids, Offer
from models.speculation.hidden_states import HiddenStates
from models.speculation.target import body_of, head_of, rows_of

_CHANCE = 0.6  # of a draft being right, so long as nothing was measured
_PENDING_TOKENS = 64  # whose states are made keys and values of before a draft asks for them


class Companion(Drafter):
    """Its context follows the tokens that the target has seen; the block's own keys and values are
    never kept. What the target has from an earlier run than the last is missing: then the context
    begins after it, at the right positions.
    """

    def __init__(
        self,
        config: CompanionConfig,
        network: DFlash,
        draft_ids: mx.array | None,
        target: nn.Module,
    ) -> None:
        """With `draft_ids` [n], only these tokens are drafted, by the head's rows for them: the
        most frequent ones make drafting cheap (FR-Spec, Zhao et al., 2025, arXiv 2502.14856)."""
        self._config, self._network, self._draft_ids = config, network, draft_ids
        self._embed = body_of(target).embed_tokens
        self._head = head_of(target, draft_ids)
        self._states = HiddenStates(target, config.target_layers)
        self._window = 0 if 0 in config.windows else max(config.windows)
        self._scope = ""
        self._tokens: Ids = np.zeros(0, np.uint32)  # that the target has seen
        self._context = network.context(0)
        self._ahead: mx.array | None = None  # drafts for the round after the one that is under way
        self._ready: mx.array | None = None  # for this one

    @classmethod
    def load(cls, folder: Path, target: nn.Module) -> "Companion":
        """From config.json and the *.safetensors in `folder`, in the dtype of the target's
        activations. Raises ValueError where names or shapes are others."""
        config = CompanionConfig.of(orjson.loads((folder / "config.json").read_bytes()))
        weights: dict[str, mx.array] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights.update(mx.load(str(file)))
        draft_ids = weights.pop("draft_ids", None)
        rows = rows_of(target)
        if draft_ids is not None and mx.any(draft_ids >= rows).item():
            raise ValueError(f"it drafts tokens beyond the {rows} of this model")
        if config.mask_id >= rows:
            raise ValueError(f"its mask is none of the {rows} tokens of this model")
        if config.selector is not None and draft_ids is None and config.vocabulary < rows:
            raise ValueError(
                f"its selector knows {config.vocabulary} of this model's {rows} tokens"
            )
        network = DFlash(config)
        network.load_weights(list(weights.items()))
        network.set_dtype(body_of(target).embed_tokens(mx.array([[0]])).dtype)
        mx.eval(network.parameters())
        return cls(config, network, draft_ids, target)

    @property
    def size_bytes(self) -> int:
        return sum(each.nbytes for _, each in tree_flatten(self._network.parameters()))

    def begin(self, scope: str, tokens: Ids) -> None:
        self._take()
        self._ahead = self._ready = None
        count, context = len(tokens), self._context
        follows = scope == self._scope and context.first <= count <= context.end
        if follows and np.array_equal(self._tokens[:count], tokens):
            context.end_at(count)
        else:
            self._context = self._network.context(count)
        self._scope, self._tokens = scope, tokens

    def follow(self, tokens: Ids) -> None:
        self._tokens = tokens
        self._ready, self._ahead = self._ahead, None
        self._context.end_at(len(tokens))
        self._states.keep(len(tokens) - self._context.end)
        if self._states.tokens >= _PENDING_TOKENS:
            self._take()
            mx.async_eval(self._context.layers)

    def offer(self, tokens: Ids) -> Offer | None:
        return Offer(self, "companion", _CHANCE, self._config.block - 1, passes=1)

    def draft(self, tokens: Ids, width: int) -> mx.array:
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready[:width]
        self._take()
        assert self._context.end == len(tokens) - 1
        return self._drafts(mx.array(tokens[-1]), mx.array(self._context.length), width)

    def draft_ahead(self, drafts: Drafts, drawn: mx.array) -> None:
        self._take()
        accepted = mx.sum(mx.cumprod(mx.array(drafts) == drawn[:-1]))
        length = self._context.length - len(drafts) + accepted
        self._ahead = self._drafts(drawn[accepted], length, self._config.block - 1)

    def _drafts(self, known: mx.array, length: mx.array, width: int) -> mx.array:
        """Those after the `known` token, when the context has that length; both are scalars."""
        masks = mx.full(self._config.block - 1, self._config.mask_id, known.dtype)
        block = self._embed(mx.concatenate([known[None], masks])[None])
        block *= self._config.embedding_scale
        hidden = self._network(block, length, self._context)[0, 1 : 1 + width]
        logits, selects = self._head(hidden), self._config.selector is not None
        if not selects:
            best = mx.argmax(logits, axis=-1)
            drafts = best if self._draft_ids is None else self._draft_ids[best]
        else:
            drafts = self._network.candidate_selector(
                hidden, self._scaled(logits), self._draft_ids, known
            )
        drafts = drafts.astype(mx.uint32)
        mx.async_eval(drafts)
        return drafts

    def _scaled(self, logits: mx.array) -> mx.array:
        """As the target has them, which decides what they are worth beside the selector's."""
        logits, cap = logits * self._config.output_multiplier, self._config.softcap
        return mx.tanh(logits / cap) * cap if cap else logits

    def _take(self) -> None:
        """What the target has seen belongs to the context. Of that a layer with a window sees, one
        token less than the window has; and the last ones may be drafts that turn out to be wrong.
        """
        states, context = self._states.take(), self._context
        if states is None:
            return
        most = self._window - 1 + self._config.block
        if self._window and (needless := states.shape[1] - most) > 0:
            states = states[:, needless:]
            context = self._context = self._network.context(context.end + needless)
        self._network.extend(states, context)
        if self._window and context.length > 2 * most:
            context.keep_last(most)

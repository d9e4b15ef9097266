"""The networks of DFlash and DFlash2: a block of tokens from the target's own hidden states.

A few layers in the shape of Qwen3's, whose keys and values are those of the *context*, which is
made of the target's hidden states, and of the block: the token that is known, and masks where the
others will be. All of the block is drafted in one pass (Chen et al., 2026, arXiv 2602.06036).
Parameters have the names of published checkpoints, so those are loaded as they are.
"""

# pyright: basic, reportMissingTypeStubs=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false
# since mlx-lm has no types, nor have the attributes of MLX's modules.

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import KVCache
from mlx_lm.models.rope_utils import initialize_rope

from models.speculation.companion_config import CompanionConfig

Masks = dict[tuple[int, bool], mx.array]  # of one pass, by what layers have in common


class DFlash(nn.Module):
    """Shapes: states of the target [1, tokens, target layers x hidden], all others [1, tokens,
    hidden]. `caches` hold what the context gives each layer; positions are those in the run."""

    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        hidden, epsilon = config.hidden, config.epsilon
        self.fc = nn.Linear(len(config.target_layers) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, epsilon)
        self.layers = [_Layer(config, place) for place in range(len(config.windows))]
        self.norm = nn.RMSNorm(hidden, epsilon)
        if config.selector is not None:
            self.candidate_selector = Selector(config)

    def extend(self, states: mx.array, position: int, caches: list[KVCache]) -> None:
        """The context goes on with these states, the first of which stands at `position`."""
        context = self.hidden_norm(self.fc(states))
        for layer, cache in zip(self.layers, caches, strict=True):
            cache.update_and_fetch(*layer.self_attn.keys_and_values(context, position))

    def __call__(self, block: mx.array, position: int, caches: list[KVCache]) -> mx.array:
        """What the head makes the block's tokens of, from their embeddings. The caches are as
        before."""
        masks: Masks = {}
        for layer, cache in zip(self.layers, caches, strict=True):
            block = layer(block, position, cache, masks)
            cache.trim(block.shape[1])
        return self.norm(block)


class Selector(nn.Module):
    """DFlash2's: of the best candidates of each place, the one that also goes best with the token
    chosen before it, given the block's hidden state there."""

    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        rank, self._best = config.selector.rank, config.selector.best
        self.predecessor_codebook = mx.zeros((config.vocabulary, rank))
        self.successor_codebook = mx.zeros((config.vocabulary, rank))
        self.hidden_projection = nn.Linear(config.hidden, rank, bias=False)

    def __call__(
        self, hidden: mx.array, logits: mx.array, ids: mx.array | None, before: int
    ) -> mx.array:
        """The tokens [places] that come after `before`. `logits` are [places, n]: of these `ids`,
        or of the whole vocabulary."""
        best = min(self._best, logits.shape[-1])
        rows = mx.argpartition(logits, -best, axis=-1)[:, -best:]
        alone = mx.take_along_axis(logits, rows, axis=-1)
        candidates = rows if ids is None else ids[rows]
        weights = self.hidden_projection(hidden)
        chosen, previous = [], mx.array(before)
        for place in range(len(logits)):
            after = self.successor_codebook[candidates[place]]
            scores = alone[place] + after @ (self.predecessor_codebook[previous] * weights[place])
            previous = candidates[place][mx.argmax(scores)]
            chosen.append(previous)
        return mx.stack(chosen)


class _Layer(nn.Module):
    def __init__(self, config: CompanionConfig, place: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, place)
        self.mlp = _FeedForward(config)
        self.input_layernorm = nn.RMSNorm(config.hidden, config.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.epsilon)
        if config.convolution is not None:
            self.attention_conv = _Convolution(config)
            self.mlp_conv = _Convolution(config)

    def __call__(self, x: mx.array, position: int, cache: KVCache, masks: Masks) -> mx.array:
        given = self.input_layernorm(x)
        if "attention_conv" not in self:
            x = x + self.self_attn(given, position, cache, masks)
            return x + self.mlp(self.post_attention_layernorm(x))
        before, after = self.attention_conv.kernels(given)
        x = x + after(self.self_attn(before(given), position, cache, masks))
        given = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(given)
        return x + after(self.mlp(before(given)))


class _Attention(nn.Module):
    def __init__(self, config: CompanionConfig, place: int) -> None:
        super().__init__()
        hidden, head = config.hidden, config.head
        self.q_proj = nn.Linear(hidden, config.heads * head, bias=False)
        self.k_proj = nn.Linear(hidden, config.key_heads * head, bias=False)
        self.v_proj = nn.Linear(hidden, config.key_heads * head, bias=False)
        self.o_proj = nn.Linear(config.heads * head, hidden, bias=False)
        self.q_norm = nn.RMSNorm(head, config.epsilon)
        self.k_norm = nn.RMSNorm(head, config.epsilon)
        self._head = head
        self._window, self._is_causal = config.windows[place], config.causal[place]
        self._rope = initialize_rope(
            head, config.rope_theta, False, config.rope_scaling, config.context
        )

    def keys_and_values(self, x: mx.array, position: int) -> tuple[mx.array, mx.array]:
        keys = self.k_norm(self._heads(self.k_proj(x)))
        return self._rope(keys, offset=position), self._heads(self.v_proj(x))

    def __call__(self, x: mx.array, position: int, cache: KVCache, masks: Masks) -> mx.array:
        queries = self._rope(self.q_norm(self._heads(self.q_proj(x))), offset=position)
        keys, _ = cache.update_and_fetch(*self.keys_and_values(x, position))
        kind = self._window, self._is_causal
        if kind not in masks:
            block = x.shape[1]
            masks[kind] = self._mask(keys.shape[2] - block, block, cache.keys.shape[2])
        # All that the cache has room for, which seldom grows: for each new size of attention, MLX
        # plans anew on CUDA, and that takes longer than the pass.
        attended = mx.fast.scaled_dot_product_attention(
            queries,
            cache.keys,
            cache.values,
            scale=self._head**-0.5,
            mask=masks[kind],
        )
        return self.o_proj(attended.transpose(0, 2, 1, 3).flatten(2))

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], -1, self._head).transpose(0, 2, 1, 3)

    def _mask(self, context: int, block: int, room: int) -> mx.array:
        """Whether [a token of the block, a place of the cache] sees the other."""
        one, other = context + mx.arange(block)[:, None], mx.arange(room)[None]
        seen = other <= one if self._is_causal else other < context + block
        if 0 < self._window < context + block:
            seen &= (one - other < self._window) | (other >= context)
        return seen


class _FeedForward(nn.Module):
    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class _Convolution(nn.Module):
    """Over a token of the block and those before it, by fixed kernels and by others that the
    tokens themselves make for each group of channels."""

    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        self._taps, self._group = config.convolution.taps, config.convolution.group
        groups = config.hidden // self._group
        self.base_kernel = mx.zeros((2, self._taps, config.hidden))
        self.kernel_projection = nn.Linear(config.hidden, 2 * self._taps * groups, bias=False)

    def kernels(self, x: mx.array) -> tuple[Any, Any]:
        """What is done before a sublayer that gets `x`, and after it."""
        made = self.kernel_projection(x).reshape(*x.shape[:2], 2, self._taps, -1, 1)
        base = self.base_kernel.reshape(2, self._taps, 1, 1, -1, self._group)
        before, after = (partial(_convolved, base[at], made[:, :, at]) for at in range(2))
        return before, after


@mx.compile  # one kernel of what would be seven
def _convolved(base: mx.array, made: mx.array, x: mx.array) -> mx.array:
    """`x` [1, tokens, hidden] by kernels [taps, 1, 1, groups, channels] and [1, tokens, taps,
    groups, 1]; the first tap is that of a token itself, the next that of the one before it."""
    (taps, _, _, groups, channels), tokens = base.shape, x.shape[1]
    padded = mx.pad(x, [(0, 0), (taps - 1, 0), (0, 0)])
    padded = padded.reshape(1, tokens + taps - 1, groups, channels)
    parts = [
        (base[tap] + made[:, :, tap]) * padded[:, start : start + tokens]
        for tap, start in enumerate(range(taps - 1, -1, -1))
    ]
    return sum(parts[1:], parts[0]).reshape(x.shape)

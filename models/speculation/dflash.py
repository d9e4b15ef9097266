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
from mlx_lm.models.rope_utils import initialize_rope

from models.speculation.companion_config import MOST_IN_BLOCK, CompanionConfig

KeysAndValues = tuple[mx.array, mx.array]  # of a layer, each [1, heads, tokens, head]

_GROWTH = MOST_IN_BLOCK  # places that are added when there are none left


class Context:
    """The keys and values that the layers make of a run, from its token at `first` on.

    The block's own have the first places, and every pass writes them anew; those of the context
    follow. So a pass needs no more of the context than how long it is, which the device may still
    be computing. All places are attended to, filled or not: they seldom grow in number, and for
    each new size of attention MLX plans anew on CUDA, which takes longer than the pass.
    """

    def __init__(self, config: CompanionConfig, dtype: mx.Dtype, first: int) -> None:
        self.first, self.length = first, 0
        self._block = config.block
        shape = 1, config.key_heads, _GROWTH, config.head
        self.layers = [(mx.zeros(shape, dtype), mx.zeros(shape, dtype)) for _ in config.windows]

    @property
    def end(self) -> int:
        """The position of the token after it."""
        return self.first + self.length

    def extend(self, layers: list[KeysAndValues]) -> None:
        start = self._block + self.length
        end, room = start + layers[0][0].shape[2], self.layers[0][0].shape[2]
        if end > room:
            more = -(-(end - room) // _GROWTH) * _GROWTH
            grown = partial(mx.pad, pad_width=[(0, 0), (0, 0), (0, more), (0, 0)])
            self.layers = [(grown(keys), grown(values)) for keys, values in self.layers]
        self._write(start, layers)
        self.length = end - self._block

    def end_at(self, position: int) -> None:
        """What comes from there on does not count."""
        self.length = min(self.length, position - self.first)

    def keep_last(self, tokens: int) -> None:
        end = self._block + self.length
        kept = slice(end - tokens, end)
        last = [(keys[..., kept, :], values[..., kept, :]) for keys, values in self.layers]
        self._write(self._block, last)
        self.first, self.length = self.end - tokens, tokens

    def _write(self, start: int, layers: list[KeysAndValues]) -> None:
        for arrays, parts in zip(self.layers, layers, strict=True):
            for array, part in zip(arrays, parts, strict=True):
                array[..., start : start + part.shape[2], :] = part


class DFlash(nn.Module):
    """Shapes: states of the target [1, tokens, target layers x hidden], all others [1, tokens,
    hidden]. Positions are those in the run."""

    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        hidden, epsilon = config.hidden, config.epsilon
        self.fc = nn.Linear(len(config.target_layers) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, epsilon)
        self.layers = [_Layer(config) for _ in config.windows]
        self.norm = nn.RMSNorm(hidden, epsilon)
        if config.selector is not None:
            self.candidate_selector = Selector(config)
        self._config = config

    def context(self, first: int) -> Context:
        """One with nothing in it yet, for a run from the token at `first` on."""
        return Context(self._config, self.fc.weight.dtype, first)

    def extend(self, states: mx.array, context: Context) -> None:
        """The context goes on with these states."""
        given = self.hidden_norm(self.fc(states))
        context.extend([each.self_attn.keys_and_values(given, context.end) for each in self.layers])

    def __call__(self, block: mx.array, length: mx.array, context: Context) -> mx.array:
        """What the head makes the block's tokens of, from their embeddings, when the context has
        `length` tokens (int32, a scalar), whatever else stands in it."""
        config, position = self._config, context.first + length
        room = context.layers[0][0].shape[2]
        kinds = list(zip(config.windows, config.causal, strict=True))
        masks = {kind: _seen(*kind, config.block, room, length) for kind in set(kinds)}
        for layer, kind, kept in zip(self.layers, kinds, context.layers, strict=True):
            block = layer(block, position, kept, masks[kind])
        return self.norm(block)


def _seen(window: int, is_causal: bool, block: int, room: int, length: mx.array) -> mx.array:
    """Whether [a token of the block, a place] sees the other."""
    row, place = mx.arange(block)[:, None], mx.arange(room)[None]
    of_context = place - block
    in_context = (of_context >= 0) & (of_context < length)
    if window:
        in_context &= length + row - of_context < window
    in_block = place <= row if is_causal else place < block
    return in_context | in_block


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
        self, hidden: mx.array, logits: mx.array, ids: mx.array | None, before: mx.array
    ) -> mx.array:
        """The tokens [places] that come after `before`, a scalar. `logits` are [places, n]: of
        these `ids`, or of the whole vocabulary."""
        best = min(self._best, logits.shape[-1])
        rows = mx.argpartition(logits, -best, axis=-1)[:, -best:]
        alone = mx.take_along_axis(logits, rows, axis=-1)
        candidates = rows if ids is None else ids[rows]
        weights = self.hidden_projection(hidden)
        chosen, previous = [], before
        for place in range(len(logits)):
            after = self.successor_codebook[candidates[place]]
            scores = alone[place] + after @ (self.predecessor_codebook[previous] * weights[place])
            previous = candidates[place][mx.argmax(scores)]
            chosen.append(previous)
        return mx.stack(chosen)


class _Layer(nn.Module):
    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _FeedForward(config)
        self.input_layernorm = nn.RMSNorm(config.hidden, config.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.epsilon)
        if config.convolution is not None:
            self.attention_conv = _Convolution(config)
            self.mlp_conv = _Convolution(config)

    def __call__(
        self, x: mx.array, position: mx.array, kept: KeysAndValues, mask: mx.array
    ) -> mx.array:
        given = self.input_layernorm(x)
        if "attention_conv" not in self:
            x = x + self.self_attn(given, position, kept, mask)
            return x + self.mlp(self.post_attention_layernorm(x))
        before, after = self.attention_conv.kernels(given)
        x = x + after(self.self_attn(before(given), position, kept, mask))
        given = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(given)
        return x + after(self.mlp(before(given)))


class _Attention(nn.Module):
    def __init__(self, config: CompanionConfig) -> None:
        super().__init__()
        hidden, head = config.hidden, config.head
        self.q_proj = nn.Linear(hidden, config.heads * head, bias=False)
        self.k_proj = nn.Linear(hidden, config.key_heads * head, bias=False)
        self.v_proj = nn.Linear(hidden, config.key_heads * head, bias=False)
        self.o_proj = nn.Linear(config.heads * head, hidden, bias=False)
        self.q_norm = nn.RMSNorm(head, config.epsilon)
        self.k_norm = nn.RMSNorm(head, config.epsilon)
        self._head = head
        self._rope = initialize_rope(
            head, config.rope_theta, False, config.rope_scaling, config.context
        )

    def keys_and_values(self, x: mx.array, position: int | mx.array) -> KeysAndValues:
        keys = self.k_norm(self._heads(self.k_proj(x)))
        return self._rope(keys, offset=position), self._heads(self.v_proj(x))

    def __call__(
        self, x: mx.array, position: mx.array, kept: KeysAndValues, mask: mx.array
    ) -> mx.array:
        queries = self._rope(self.q_norm(self._heads(self.q_proj(x))), offset=position)
        for array, own in zip(kept, self.keys_and_values(x, position), strict=True):
            array[..., : x.shape[1], :] = own
        attended = mx.fast.scaled_dot_product_attention(
            queries, *kept, scale=self._head**-0.5, mask=mask
        )
        return self.o_proj(attended.transpose(0, 2, 1, 3).flatten(2))

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], -1, self._head).transpose(0, 2, 1, 3)


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

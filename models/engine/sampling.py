"""The next token from a row of logits."""

import hashlib
from collections.abc import Callable

import mlx.core as mx

Sampler = Callable[[mx.array, int], mx.array]

# Colder than this changes no draw, but would overflow float32.
_COLDEST = 1e-9

# Half of the least step between random numbers of 32 bits: 0 would win against any logit.
_LEAST_UNIFORM = 2.0**-33


def sampler(*, temperature: float, top_p: float, top_k: int, seed: int) -> Sampler:
    """A function (logits [rows, vocabulary], index of the first of these generated tokens) → token
    ids [rows].

    Temperature first, then the `top_k` best, then the smallest set whose probability reaches
    `top_p`: the order of Hugging Face's warpers. Temperature 0 is greedy; `top_k` 0 and `top_p` 1
    are off. The draw depends on (seed, index) alone, so a run can be taken up again at any token.
    """
    if temperature == 0:
        return lambda logits, index: mx.argmax(logits, axis=-1)

    scale = 1.0 / max(temperature, _COLDEST)

    def sample(logits: mx.array, index: int) -> mx.array:
        scaled = logits.astype(mx.float32) * scale
        if 0 < top_k < scaled.shape[-1]:
            scaled = _keep_best(scaled, top_k)
        if top_p < 1:
            scaled = _keep_nucleus(scaled, top_p)
        return mx.argmax(scaled + _noise(scaled.shape, seed, index), axis=-1)

    return sample


def _noise(shape: tuple[int, ...], seed: int, index: int) -> mx.array:
    """Gumbel's (float32), for logits of that shape: the best of logits + noise is drawn by
    softmax(logits).

    Each token has its own noise, so logits that are rounded otherwise (a pass of more rows, other
    hardware) draw another token only where two were about to tie. Inverting the cumulative
    distribution, as `mx.random.categorical` does, they move every token's interval.

    Large noise decides, and comes from uniform numbers near 0, where float32 has all 32 random
    bits; near 1 it has 24, and large vocabularies would tie.
    """
    keys = [_key(seed, index + row) for row in range(shape[0])]
    uniform = mx.stack([mx.random.uniform(shape=shape[1:], key=key) for key in keys])
    return -mx.log(-mx.log1p(-mx.maximum(uniform, _LEAST_UNIFORM)))


def _keep_best(logits: mx.array, count: int) -> mx.array:
    smallest_kept = mx.min(mx.topk(logits, count, axis=-1), axis=-1, keepdims=True)
    return mx.where(logits < smallest_kept, -mx.inf, logits)


def _keep_nucleus(logits: mx.array, mass: float) -> mx.array:
    order = mx.argsort(-logits, axis=-1)
    probabilities = mx.softmax(mx.take_along_axis(logits, order, axis=-1), axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    # The most likely token has no mass before it; it is always kept, also for a top_p of 0.
    keep = (before < mass) | (mx.arange(order.shape[-1]) == 0)
    dropped = mx.put_along_axis(mx.zeros_like(keep), order, ~keep, axis=-1)
    return mx.where(dropped, -mx.inf, logits)


def _key(seed: int, index: int) -> mx.array:
    """A key per token (uint32 [2]); hashed, so that neighbouring seeds share no draws."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    words = [int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")]
    return mx.array(words, dtype=mx.uint32)

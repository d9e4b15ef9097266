"""Weights as codes, scales and biases: in each group of 64 inputs, weight = scale x code + bias.

`affine` is MLX's own rule. It fits the codes to a scale in float32, which is then stored in
bfloat16: codes and scale no longer belong together, and the weights of a group are moved in one
direction, those next to zero included. `symmetric` fits the codes to scales as they are stored,
and zero stays zero; the file is one of affine codes to any reader, since its bias is -128 x scale,
which bfloat16 holds exactly.
"""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false

import mlx.core as mx

from models.quantization.forms import GROUP_SIZE, Form

Codes = tuple[mx.array, mx.array, mx.array]

_WEIGHTS_AT_ONCE = 1 << 20  # few enough for a CPU's caches
_NEIGHBOURS = range(16, -3, -1)  # of a scale, among the values of bfloat16; larger ones first
_ZERO = 128  # the code that means 0
_LARGEST = 127
_LEAST_SCALE = 2.0**-119  # of which 1/128 is still no subnormal number


def coded(weights: mx.array, form: Form) -> Codes:
    """`weights` [..., inputs], of which inputs are a multiple of 64: codes [..., inputs x bits /
    32] in uint32, scales and biases [..., inputs / 64] in bfloat16."""
    shape, inputs = weights.shape[:-1], weights.shape[-1]
    rows = weights.reshape(-1, inputs)
    step = max(1, _WEIGHTS_AT_ONCE // inputs)
    parts: list[Codes] = []
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        part = _symmetric(some) if form.symmetric else _affine(some, form.bits)
        mx.eval(part)
        parts.append(part)
    codes, scales, biases = (mx.concatenate(each) for each in zip(*parts, strict=True))
    return codes.reshape(*shape, -1), scales.reshape(*shape, -1), biases.reshape(*shape, -1)


def _affine(rows: mx.array, bits: int) -> Codes:
    codes, scales, biases = mx.quantize(rows.astype(mx.bfloat16), GROUP_SIZE, bits)
    return codes, scales, biases


def _symmetric(rows: mx.array) -> Codes:
    """8 bits. Of the scale next to largest / 127 and its neighbours, each group gets the one with
    the least squared error of the codes that fit it. Larger ones are tried, 6 to 12 % more at most:
    weights that a file held in fewer bits lie on grids of their own, which a larger scale may meet;
    a smaller one cuts the largest weight off."""
    groups = rows.astype(mx.float32).reshape(len(rows), -1, GROUP_SIZE)
    largest = mx.abs(groups).max(axis=-1, keepdims=True)
    nearest = mx.maximum(largest / _LARGEST, _LEAST_SCALE).astype(mx.bfloat16)
    unit = nearest.astype(mx.float32)  # in which errors are measured, so that none overflows
    in_units = groups / unit
    least, scales = mx.full(largest.shape, mx.inf), nearest
    for neighbour in _NEIGHBOURS:
        stored = (nearest.view(mx.uint16).astype(mx.int32) + neighbour).astype(mx.uint16)
        stored = stored.view(mx.bfloat16)
        apart = _fitting(groups, stored) * (stored.astype(mx.float32) / unit) - in_units
        error = mx.square(apart).sum(axis=-1, keepdims=True)
        scales = mx.where(error < least, stored, scales)
        least = mx.minimum(error, least)
    packed = (_fitting(groups, scales) + _ZERO).astype(mx.uint8).reshape(rows.shape).view(mx.uint32)
    return packed, scales[..., 0], -_ZERO * scales[..., 0]


def _fitting(groups: mx.array, scales: mx.array) -> mx.array:
    return mx.clip(mx.round(groups / scales.astype(mx.float32)), -_ZERO, _LARGEST)

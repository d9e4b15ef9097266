"""The product of a few rows with quantised weights, by the kernel of the device at hand.

Verifying a handful of drafted tokens should cost what one token costs: reading the weights once.
MLX's own product reads them once per row below eight rows. Rows are bfloat16, sums float32.
"""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false

from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from models.kernels import cuda_product, metal_product
from models.kernels.weights import Weights

MAX_ROWS = 16
_H200_PROCESSORS = 132  # a block for each that it can hold; other GPUs are measured with the same


@dataclass(frozen=True)
class _Plan:
    """The constants of `cuda_product.SOURCE`, found by measuring shapes of Muse Glimmer on an
    H200, and how many blocks a processor holds at once with them."""

    tiles: int
    warps: int
    groups: int
    stages: int
    resident: int


_WIDE = _Plan(tiles=1, warps=4, groups=2, stages=4, resident=5)  # many outputs
_DEEP = _Plan(tiles=2, warps=8, groups=2, stages=2, resident=2)  # few outputs, or gated
_NIBBLES = _Plan(tiles=2, warps=4, groups=4, stages=3, resident=3)
_MANY_ROWS = _Plan(tiles=1, warps=4, groups=4, stages=3, resident=3)  # nine and more
_MANY_ROWS_GATED = _Plan(tiles=2, warps=4, groups=2, stages=4, resident=2)
_MANY_OUTPUTS = 4 * _H200_PROCESSORS * 16


def cuda_product_of(rows: mx.array, weights: Weights, gated: bool = False) -> mx.array:
    """`rows` [..., inputs] in bfloat16, at most `MAX_ROWS`; returns [..., outputs].

    With `gated`, the first half of the outputs are gates: silu(gate) * other half is returned.
    """
    count = rows.size // rows.shape[-1]
    plan = _plan(weights, gated, count)
    written = weights.outputs // 2 if gated else weights.outputs
    blocks = min(weights.outputs // (plan.tiles * 16), plan.resident * _H200_PROCESSORS)
    columns = 1 if count <= 8 else 2
    return _cuda_kernel(plan, weights.bits, columns, gated)(
        inputs=[rows, weights.codes, weights.scales, weights.biases],
        template=[
            ("BITS", weights.bits),
            ("TILES", plan.tiles),
            ("WARPS", plan.warps),
            ("GROUPS", plan.groups),
            ("STAGES", plan.stages),
            ("COLUMNS", columns),
            ("GATED", gated),
        ],
        grid=(blocks * plan.warps * 32, 1, 1),
        threadgroup=(plan.warps * 32, 1, 1),
        output_shapes=[(*rows.shape[:-1], written)],
        output_dtypes=[mx.bfloat16],
    )[0]


def cuda_takes(weights: Weights, gated: bool = False) -> bool:
    """Whether the kernel divides these weights evenly, whatever the number of rows."""
    return all(
        weights.outputs % (plan.tiles * 16) == 0
        and weights.inputs % (plan.groups * 64) == 0
        and weights.inputs // (plan.groups * 64) >= plan.warps
        for plan in (_plan(weights, gated, rows) for rows in (1, MAX_ROWS))
    )


def _plan(weights: Weights, gated: bool, rows: int) -> _Plan:
    if weights.bits == 4:
        return _NIBBLES
    if rows > 8:
        return _MANY_ROWS_GATED if gated else _MANY_ROWS
    return _WIDE if weights.outputs >= _MANY_OUTPUTS and not gated else _DEEP


@cache
def _cuda_kernel(plan: _Plan, bits: int, columns: int, gated: bool) -> Any:
    tile_bytes = 16 * plan.groups * (8 * bits + 4)
    ring_bytes = plan.warps * plan.stages * plan.tiles * tile_bytes
    sums_bytes = 2 * plan.warps * plan.tiles * columns * 4 * 32 * 4
    named = f"{bits}_{plan.tiles}_{plan.warps}_{plan.groups}_{plan.stages}_{columns}"
    return mx.fast.cuda_kernel(
        name=f"few_rows_{named}{'_gated' if gated else ''}",
        input_names=["x", "w", "s", "b"],
        output_names=["y"],
        header=cuda_product.HEADER,
        source=cuda_product.SOURCE,
        shared_memory=ring_bytes + sums_bytes,
    )


def metal_product_of(rows: mx.array, weights: Weights) -> mx.array:
    """As `cuda_product_of`, without gates."""
    count = rows.size // rows.shape[-1]
    groups = weights.outputs // metal_product.OUTPUTS
    return _metal_kernel()(
        inputs=[rows, weights.codes, weights.scales, weights.biases],
        template=[("BITS", weights.bits), ("ROWS", count), ("OUTPUTS", metal_product.OUTPUTS)],
        grid=(groups * 32, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[(*rows.shape[:-1], weights.outputs)],
        output_dtypes=[mx.bfloat16],
    )[0]


def metal_takes(weights: Weights, gated: bool = False) -> bool:
    return (
        not gated
        and weights.outputs % (2 * metal_product.OUTPUTS) == 0
        and weights.inputs % metal_product.INPUTS_AT_ONCE == 0
    )


@cache
def _metal_kernel() -> Any:
    return mx.fast.metal_kernel(
        name="few_rows",
        input_names=["x", "w", "s", "b"],
        output_names=["y"],
        source=metal_product.SOURCE,
    )

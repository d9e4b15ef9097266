"""The kernels of a step that lie between its products, as functions of arrays."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import mlx.core as mx

from models.kernels import cuda_step

HEAD_SIZE = 128
_SPLITS = {1: 32}  # blocks that share the keys of a head, by rows: fewer rows need more of them
_SPLITS_OF_MORE = 16
_WARPS_OF_HEADS = 8


@dataclass(frozen=True)
class Heads:
    """How many a layer's attention has. Queries share keys in equal parts."""

    queries: int
    keys: int


class StepKernels(Protocol):
    """What a device has to have for steps in few launches."""

    def split(
        self, heads: Heads, taken: mx.array, place: mx.array, factors: mx.array, rotates: bool
    ) -> Sequence[mx.array]:
        """Queries [1, rows, heads * 128], keys and values [1, heads, rows, 128], normed and
        rotated, from their projections and those of gates, `taken` [1, rows, all of them].
        `place` [1] is that of the first row; `factors` are the norm's epsilon, the scale of
        queries and log2 of the rotation's base."""
        ...

    def attend(
        self, heads: Heads, queries: mx.array, keys: mx.array, values: mx.array, window: int
    ) -> Sequence[mx.array]:
        """What `merge` puts together, of two arrays. The last keys are of the rows themselves, and
        each row sees those up to its own; at most `window` of them, unless that is 0."""
        ...

    def merge(self, heads: Heads, part: mx.array, extent: mx.array, taken: mx.array) -> mx.array:
        """What the rows attend to, times the sigmoid of their gates; [1, rows, heads * 128]."""
        ...

    def norms(
        self,
        given: mx.array,
        stream: mx.array,
        after: mx.array,
        before: mx.array,
        epsilons: mx.array,
    ) -> Sequence[mx.array]:
        """The stream with what a block gave, normed by `after`; and that stream normed by
        `before`."""
        ...


class CudaStepKernels:
    """Those of `cuda_step`."""

    def split(
        self, heads: Heads, taken: mx.array, place: mx.array, factors: mx.array, rotates: bool
    ) -> Sequence[mx.array]:
        rows = taken.shape[1]
        blocks = -(-rows * (heads.queries + 2 * heads.keys) // _WARPS_OF_HEADS)
        width = _WARPS_OF_HEADS * 32
        of_keys = (1, heads.keys, rows, HEAD_SIZE)
        return _kernel("heads")(
            inputs=[taken, place, factors],
            template=[("HEADS", heads.queries), ("KV", heads.keys), ("ROTATES", rotates)],
            grid=(blocks * width, 1, 1),
            threadgroup=(width, 1, 1),
            output_shapes=[(1, rows, heads.queries * HEAD_SIZE), of_keys, of_keys],
            output_dtypes=[mx.bfloat16] * 3,
        )

    def attend(
        self, heads: Heads, queries: mx.array, keys: mx.array, values: mx.array, window: int
    ) -> Sequence[mx.array]:
        rows = queries.shape[1]
        splits = _SPLITS.get(rows, _SPLITS_OF_MORE)
        tiles = -(-rows * (heads.queries // heads.keys) // 16)
        return _kernel("attend")(
            inputs=[queries, keys, values],
            template=[
                ("HEADS", heads.queries),
                ("KV", heads.keys),
                ("SPLITS", splits),
                ("WINDOW", window),
            ],
            grid=(splits * 128, heads.keys, tiles),
            threadgroup=(128, 1, 1),
            output_shapes=[
                (rows * heads.queries, splits, HEAD_SIZE),
                (rows * heads.queries, splits, 2),
            ],
            output_dtypes=[mx.float32] * 2,
        )

    def merge(self, heads: Heads, part: mx.array, extent: mx.array, taken: mx.array) -> mx.array:
        rows, splits = taken.shape[1], part.shape[1]
        return _kernel("merge")(
            inputs=[part, extent, taken],
            template=[("HEADS", heads.queries), ("SPLITS", splits)],
            grid=(heads.queries * HEAD_SIZE, rows, 1),
            threadgroup=(HEAD_SIZE, 1, 1),
            output_shapes=[(1, rows, heads.queries * HEAD_SIZE)],
            output_dtypes=[mx.bfloat16],
        )[0]

    def norms(
        self,
        given: mx.array,
        stream: mx.array,
        after: mx.array,
        before: mx.array,
        epsilons: mx.array,
    ) -> Sequence[mx.array]:
        width = stream.shape[-1]
        rows = stream.size // width
        return _kernel("norms")(
            inputs=[given, stream, after, before, epsilons],
            grid=(rows * width // 8, 1, 1),
            threadgroup=(width // 8, 1, 1),
            output_shapes=[stream.shape, stream.shape],
            output_dtypes=[mx.bfloat16] * 2,
        )


def can_norm(width: int) -> bool:
    """Whether `CudaStepKernels.norms` takes rows of that width."""
    return width % 256 == 0 and width <= 8192


_SIGNATURES = {
    "heads": (["x", "at", "factors"], ["q", "k", "v"], cuda_step.HEADS_SOURCE),
    "attend": (["q", "k", "v"], ["part", "stat"], cuda_step.ATTEND_SOURCE),
    "merge": (["part", "stat", "x"], ["y"], cuda_step.MERGE_SOURCE),
    "norms": (["x", "h", "one", "two", "epsilons"], ["h2", "y"], cuda_step.NORMS_SOURCE),
}


@cache
def _kernel(name: str) -> Any:
    inputs, outputs, source = _SIGNATURES[name]
    return mx.fast.cuda_kernel(
        name=f"glimmer_{name}",
        input_names=inputs,
        output_names=outputs,
        header=cuda_step.HEADER,
        source=source,
        ensure_row_contiguous=name != "attend",  # it takes the slices of caches as they are
    )

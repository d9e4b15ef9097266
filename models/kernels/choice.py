"""Which products the kernels take over: checked and timed on the machine at hand, at load."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from models.kernels.few_rows import (
    cuda_product_of,
    cuda_takes,
    metal_product_of,
    metal_takes,
)
from models.kernels.step_kernels import CudaStepKernels, StepKernels
from models.kernels.weights import Weights

MAX_RELATIVE_ERROR = 0.005  # root mean square, against float32; bfloat16 outputs alone have 0.0017
TIMED_ROWS = (1, 4, 8)
_CHECKED_ROWS = (1, 8, 16)
_CHECKED_OUTPUTS = 4096  # at each end: all of a vocabulary in float32 would take gigabytes
_BEYOND_FLOAT16 = 1e6
_LINKS = 24  # products in a timed chain: each waits for the one before it, as in a model
_REPEATS = 3

Product = Callable[[mx.array, Weights, bool], mx.array]


@dataclass(frozen=True)
class Backend:
    """Kernels of a kind of device. `seconds(work)` evaluates what `work()` returns."""

    name: str
    product: Product
    takes: Callable[[Weights, bool], bool]
    steps: StepKernels | None  # those of whole steps, where there are some
    seconds: Callable[[Callable[[], mx.array]], float]


@dataclass(frozen=True)
class Choice:
    """What was found for one shape; times in microseconds by number of rows."""

    outputs: int
    inputs: int
    bits: int
    gated: bool
    modules: int
    relative_error: float | None
    stock: dict[int, float]
    kernel: dict[int, float]
    gigabytes_per_second: float | None  # of weights, by the kernel at one row
    installed: bool
    why: str

    @property
    def is_correct(self) -> bool:
        return self.relative_error is not None and self.relative_error <= MAX_RELATIVE_ERROR

    def facts(self) -> dict[str, Any]:
        def rounded(times: dict[int, float]) -> dict[str, float]:
            return {str(rows): round(time, 1) for rows, time in times.items()}

        error = self.relative_error
        return vars(self) | {
            "relative_error": None if error is None else round(error, 5),
            "stock": rounded(self.stock),
            "kernel": rounded(self.kernel),
        }


def backend_here() -> Backend | None:
    """Of the device that MLX uses; None on a CPU, where weights are dense."""
    if mx.default_device() != mx.gpu:
        return None
    if mx.metal.is_available():
        return Backend(
            "metal", lambda x, w, gated: metal_product_of(x, w), metal_takes, None, _seconds
        )
    return Backend("cuda", cuda_product_of, cuda_takes, CudaStepKernels(), _seconds)


def choose(
    backend: Backend, alike: list[Weights], alive: Callable[[], None], gated: bool = False
) -> Choice:
    """Check and time the kernel on weights of one shape; the timed chain goes through them all, so
    that it reads memory and not a cache. `alive` is called whenever something has been done."""
    weights = alike[0]

    def chosen(
        installed: bool,
        why: str,
        error: float | None = None,
        stock: dict[int, float] | None = None,
        kernel: dict[int, float] | None = None,
    ) -> Choice:
        best = kernel.get(1) if kernel else None
        return Choice(
            weights.outputs,
            weights.inputs,
            weights.bits,
            gated,
            len(alike),
            error,
            stock or {},
            kernel or {},
            round(weights.size_bytes / best / 1000, 1) if best else None,
            installed,
            why,
        )

    if not backend.takes(weights, gated):
        return chosen(False, "the shape does not divide into the kernel's tiles")
    try:
        error = max(_relative_error(backend.product, weights, gated, n) for n in _CHECKED_ROWS)
    except Exception as problem:  # a compiler's or a driver's: MLX's product does it, then
        return chosen(False, f"it does not run here: {' '.join(str(problem).split())[:200]}")
    if not error <= MAX_RELATIVE_ERROR:
        return chosen(False, f"its relative error is above {MAX_RELATIVE_ERROR}", error)
    stock: dict[int, float] = {}
    kernel: dict[int, float] = {}
    for product, times in ((_stock, stock), (backend.product, kernel)):
        for rows in TIMED_ROWS:
            times[rows] = _timed(backend, product, alike, gated, rows)
            alive()
    if sum(kernel.values()) >= sum(stock.values()):
        return chosen(False, "MLX's product is faster here", error, stock, kernel)
    return chosen(True, "correct, and faster than MLX's product", error, stock, kernel)


def _stock(rows: mx.array, weights: Weights, gated: bool) -> mx.array:
    product = weights.times(rows)
    return _gate(product) if gated else product


def _gate(product: mx.array) -> mx.array:
    gate, up = mx.split(product, 2, axis=-1)
    return gate * mx.sigmoid(gate) * up


def _relative_error(product: Product, weights: Weights, gated: bool, rows: int) -> float:
    """The worse of rows of ordinary size and of rows beyond float16's range."""
    # Gates beyond that range only saturate: with them it is the meeting of halves that is checked.
    sizes = [1.0] if gated else [1.0, _BEYOND_FLOAT16]
    key = mx.random.key(rows)
    worst: Any = 0.0
    for size in sizes:
        normal = mx.random.normal((2, rows, weights.inputs), key=key)
        given = (normal[0] * mx.exp(normal[1]) * size).astype(mx.bfloat16)
        got = product(given[None], weights, gated)[0].astype(mx.float32)
        for start, stop in _ends(weights.outputs // (2 if gated else 1)):
            parts = [weights.some(start, stop)]
            if gated:
                half = weights.outputs // 2
                parts.append(weights.some(half + start, half + stop))
            exact = [given.astype(mx.float32) @ part.dense().T for part in parts]
            expected = exact[0] if not gated else exact[0] * mx.sigmoid(exact[0]) * exact[1]
            apart = mx.linalg.norm(got[:, start:stop] - expected) / mx.linalg.norm(expected)
            found: Any = apart.item()
            worst = found if not found <= worst else worst  # NaN is worst
    return worst


def _ends(outputs: int) -> list[tuple[int, int]]:
    if outputs <= 2 * _CHECKED_OUTPUTS:
        return [(0, outputs)]
    return [(0, _CHECKED_OUTPUTS), (outputs - _CHECKED_OUTPUTS, outputs)]


def _timed(
    backend: Backend, product: Product, alike: list[Weights], gated: bool, rows: int
) -> float:
    """Microseconds of one product in a chain."""
    weights = alike[0]
    first = mx.random.normal((1, rows, weights.inputs)).astype(mx.bfloat16)
    mx.eval(first)
    links = max(4, min(_LINKS, len(alike) * 4))

    def chain(rows_given: mx.array) -> mx.array:
        given = rows_given
        for i in range(links):
            given = _linked(rows_given, product(given, alike[i % len(alike)], gated))
        return given

    compiled = mx.compile(chain)  # what Python takes is no part of the comparison
    chain_seconds = [backend.seconds(lambda: compiled(first)) for _ in range(_REPEATS + 1)][1:]
    return statistics.median(chain_seconds) / links * 1e6


def _linked(rows: mx.array, product: mx.array) -> mx.array:
    """The rows, once the product is there."""
    return rows + product[..., :1] * 0


def _seconds(work: Callable[[], mx.array]) -> float:
    mx.synchronize()
    started = time.perf_counter()
    mx.eval(work())
    return time.perf_counter() - started

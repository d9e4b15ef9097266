"""Quantised layers that take a kernel for few rows."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from models.kernels.choice import Product
from models.kernels.few_rows import MAX_ROWS
from models.kernels.weights import Weights


@dataclass(frozen=True, eq=False)
class _Kernel:
    product: Product
    weights: Weights  # that it was checked with

    def takes(self, module: nn.Module, x: mx.array) -> bool:
        return (
            x.size <= MAX_ROWS * x.shape[-1]
            and x.dtype == mx.bfloat16
            and self.weights.are_those_of(module)
        )


class FewRowsLinear(nn.QuantizedLinear):
    """As it was, but for few rows, as long as it has the weights that were checked."""

    few_rows: _Kernel

    def __call__(self, x: mx.array) -> mx.array:
        if not self.few_rows.takes(self, x):
            return super().__call__(x)
        y = self.few_rows.product(x, self.few_rows.weights, False)
        return y + self["bias"] if "bias" in self else y


class FewRowsEmbedding(nn.QuantizedEmbedding):
    """Likewise, where it is the output projection as well."""

    few_rows: _Kernel

    def as_linear(self, x: mx.array) -> mx.array:
        if not self.few_rows.takes(self, x):
            return super().as_linear(x)
        return self.few_rows.product(x, self.few_rows.weights, False)


_WITH_KERNEL: dict[type, Any] = {
    nn.QuantizedLinear: FewRowsLinear,
    nn.QuantizedEmbedding: FewRowsEmbedding,
}


def can_have_kernel(module: nn.Module) -> bool:
    return type(module) in _WITH_KERNEL


def give_kernel(module: nn.Module, weights: Weights, product: Product) -> None:
    """Let the module take `product` for few rows. It stays the same object in its model: names and
    parameters are as before."""
    module.__class__ = _WITH_KERNEL[type(module)]
    module.few_rows = _Kernel(product, weights)

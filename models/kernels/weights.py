"""Quantised weights as the kernels take them."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass
from typing import Self

import mlx.core as mx
import mlx.nn as nn

from models.quantization.forms import GROUP_SIZE


@dataclass(frozen=True, eq=False)
class Weights:
    """Affine codes [outputs, inputs * bits / 32] of 4 or 8 bits, and their scales and biases
    [outputs, inputs / 64] in bfloat16."""

    codes: mx.array
    scales: mx.array
    biases: mx.array
    bits: int

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """Of a quantised layer; None if they are stored in another way."""
        if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return None
        if module.mode != "affine":
            return None
        if module.group_size != GROUP_SIZE or module.bits not in (4, 8):
            return None
        if module.scales.dtype != mx.bfloat16:
            return None
        return cls(module.weight, module.scales, module.biases, module.bits)

    @property
    def outputs(self) -> int:
        return self.codes.shape[0]

    @property
    def inputs(self) -> int:
        return self.scales.shape[1] * GROUP_SIZE

    @property
    def size_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.biases.nbytes

    def are_those_of(self, module: nn.Module) -> bool:
        """Whether the module still has these arrays."""
        return (
            module["weight"] is self.codes
            and module["scales"] is self.scales
            and module["biases"] is self.biases
        )

    def times(self, rows: mx.array) -> mx.array:
        """MLX's own product, [..., outputs]."""
        return mx.quantized_matmul(
            rows,
            self.codes,
            self.scales,
            self.biases,
            transpose=True,
            group_size=GROUP_SIZE,
            bits=self.bits,
        )

    def some(self, start: int, stop: int) -> Self:
        """Of those outputs; the memory is shared."""
        cut = (self.codes[start:stop], self.scales[start:stop], self.biases[start:stop])
        mx.eval(cut)
        return type(self)(*cut, self.bits)

    def dense(self) -> mx.array:
        """In float32, [outputs, inputs]."""
        scales, biases = self.scales.astype(mx.float32), self.biases.astype(mx.float32)
        return mx.dequantize(self.codes, scales, biases, group_size=GROUP_SIZE, bits=self.bits)


def joined(parts: list[Weights]) -> Weights:
    """One after the other, in new memory."""
    codes, scales, biases = (
        mx.concatenate([getattr(part, name) for part in parts])
        for name in ("codes", "scales", "biases")
    )
    mx.eval(codes, scales, biases)
    return Weights(codes, scales, biases, parts[0].bits)

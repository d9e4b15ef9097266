"""The parts of an mlx-lm model that drafters share with it."""

# pyright: basic, reportMissingTypeStubs=false
# since mlx-lm has no types.

from collections.abc import Callable
from typing import Any

import mlx.core as mx


def body_of(model: Any) -> Any:
    """The part that has its embeddings and layers, without its head."""
    return _text_of(model).model


def rows_of(model: Any) -> int:
    """How many tokens it knows, those that only pad its vocabulary included."""
    return body_of(model).embed_tokens.weight.shape[0]


def head_of(model: Any, ids: mx.array | None) -> Callable[[mx.array], mx.array]:
    """From hidden states [tokens, hidden] to the logits of its vocabulary, or of these tokens, of
    which it then has weights of its own. Without a final scale or cap."""
    head = getattr(_text_of(model), "lm_head", None)
    module = body_of(model).embed_tokens if head is None else head
    if ids is None:
        return module.as_linear if head is None else module
    rows = module.weight[ids]
    if "scales" in module:
        biases = module.biases[ids] if "biases" in module else None
        rows = mx.dequantize(
            rows, module.scales[ids], biases, module.group_size, module.bits, module.mode
        )
    mx.eval(rows)
    return lambda hidden: hidden @ rows.T


def _text_of(model: Any) -> Any:
    return getattr(model, "language_model", model)

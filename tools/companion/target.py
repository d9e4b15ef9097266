"""The model that a companion drafts for: a llama, with the states of some of its layers."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tools.companion.errors import CannotTrain


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values, `[layers, rows, heads, length, head_dim]` each."""

    keys: Tensor
    values: Tensor


class Target:
    """A llama checkpoint in a folder: `config.json` and any number of safetensors files.

    Raises `CannotTrain` for a folder that has something else.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        config = _config(folder)
        self.layers: int = config["num_hidden_layers"]
        self.hidden: int = config["hidden_size"]
        self.intermediate: int = config["intermediate_size"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config.get("num_key_value_heads", self.heads)
        self.head_dim: int = config.get("head_dim") or self.hidden // self.heads
        self.eps: float = config["rms_norm_eps"]
        self.theta: float = config.get("rope_theta", 10000.0)
        self.vocabulary: int = config["vocab_size"]
        self.device = device
        self._weights = {
            name.removeprefix("model."): tensor.to(device, dtype)
            for file in sorted(folder.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }
        if "embed_tokens.weight" not in self._weights:
            raise CannotTrain(f"{folder} has no safetensors file with model.embed_tokens.weight")
        self.embedding = self._weights["embed_tokens.weight"]
        # Whatever the dtype, logits are float32: bfloat16 ones have ties where the model has none.
        self.head = self._weights.get("lm_head.weight", self.embedding).float()

    def cache(self, rows: int, length: int) -> Cache:
        """Room for `length` tokens of each row."""
        shape = (self.layers, rows, self.kv_heads, length, self.head_dim)
        keys, values = (self.embedding.new_zeros(shape) for _ in range(2))
        return Cache(keys, values)

    def __call__(
        self, ids: Tensor, positions: Tensor, cache: Cache, length: int, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Logits, `[rows, tokens, vocabulary]` in float32, and what layers `taps` put out, side by
        side, `[rows, tokens, taps * hidden]`.

        `ids` are `[rows, tokens]`, at the `positions` `[tokens]` of every row, which must be among
        the first `length` of the cache.
        """
        x = self.embedding[ids]
        angles = rope_angles(positions, self.head_dim, self.theta)
        hidden_keys = torch.arange(length, device=self.device) > positions[:, None]
        tapped: list[Tensor] = []
        for layer in range(self.layers):
            normed = rms_norm(x, self._weight(layer, "input_layernorm"), self.eps)
            x = x + self._attention(layer, normed, positions, angles, hidden_keys, cache)
            normed = rms_norm(x, self._weight(layer, "post_attention_layernorm"), self.eps)
            gate = F.silu(F.linear(normed, self._weight(layer, "mlp.gate_proj")))
            up = F.linear(normed, self._weight(layer, "mlp.up_proj"))
            x = x + F.linear(gate * up, self._weight(layer, "mlp.down_proj"))
            if layer in taps:
                tapped.append(x)
        normed = rms_norm(x, self._weights["norm.weight"], self.eps)
        return F.linear(normed.float(), self.head), torch.cat(tapped, -1)

    def _attention(
        self,
        layer: int,
        x: Tensor,
        positions: Tensor,
        angles: Tensor,
        hidden_keys: Tensor,
        cache: Cache,
    ) -> Tensor:
        rows, tokens, _ = x.shape
        length = hidden_keys.shape[-1]

        def heads(name: str) -> Tensor:
            projected = F.linear(x, self._weight(layer, f"self_attn.{name}_proj"))
            return projected.view(rows, tokens, -1, self.head_dim).transpose(1, 2)

        keys, values = cache.keys[layer], cache.values[layer]
        keys.index_copy_(2, positions, rotated(heads("k"), angles))
        values.index_copy_(2, positions, heads("v"))
        # The queries that share a head's keys are rows of one product: keys are read once.
        queries = rotated(heads("q"), angles).reshape(rows, self.kv_heads, -1, self.head_dim)
        scores = queries @ keys[:, :, :length].transpose(2, 3) * self.head_dim**-0.5
        scores = scores.view(rows, self.kv_heads, -1, tokens, length)
        scores = scores.masked_fill(hidden_keys, float("-inf")).float().softmax(-1).to(x.dtype)
        mixed = scores.view(rows, self.kv_heads, -1, length) @ values[:, :, :length]
        mixed = mixed.view(rows, self.heads, tokens, self.head_dim).transpose(1, 2)
        return F.linear(mixed.reshape(rows, tokens, -1), self._weight(layer, "self_attn.o_proj"))

    def _weight(self, layer: int, name: str) -> Tensor:
        return self._weights[f"layers.{layer}.{name}.weight"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis, computed in float32, in the dtype of `x`."""
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def rope_angles(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """By how much each pair of a head's values turns, `[*positions, head_dim / 2]` in float32."""
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    return positions[..., None].float() * (pairs * (-math.log(theta) / head_dim)).exp()


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021), in halves as Hugging Face's llama has them.

    `x` is `[..., tokens, head_dim]`, and `angles` must broadcast with its first half.
    """
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as why:
        raise CannotTrain(f"{folder} is no checkpoint: {why}") from None
    if config.get("model_type") != "llama" or config.get("rope_scaling"):
        raise CannotTrain(
            f"{folder} has a model of type {config.get('model_type')}: only llamas without "
            "rope_scaling can be targets"
        )
    return config

"""A block diffusion drafter: DFlash (2026, arXiv 2602.06036), first version, in torch."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.companion.target import Target, rms_norm, rope_angles, rotated


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be decided of a drafter's shape; the rest is the target's.

    `taps` are the target's layers whose output it reads, from 0. `mask_id` is a token that no text
    has: it stands where a token is to be drafted. `block` counts the anchor, too.
    """

    layers: int
    taps: tuple[int, ...]
    mask_id: int
    block: int = 8


class Drafter(nn.Module):
    """Drafts `block - 1` tokens after an anchor at once, out of `draft_ids`.

    Embeddings and the rows of the head are the target's and stay as they are. Parameters have the
    names of the file format, and `draft_ids` (int32, ascending) is saved with them. `sizes` say
    how large each value of the features usually is, which differs by hundreds: `fc` is learned for
    features of one size, and saved for those there are.
    """

    def __init__(self, target: Target, plan: Plan, draft_ids: Tensor, sizes: Tensor) -> None:
        super().__init__()
        self.plan, self.target = plan, target
        self.fc = _linear(len(plan.taps) * target.hidden, target.hidden)
        self.hidden_norm = _Norm(target.hidden, target.eps)
        self.layers = nn.ModuleList(_Layer(target) for _ in range(plan.layers))
        self.norm = _Norm(target.hidden, target.eps)
        self.register_buffer("draft_ids", draft_ids.to(torch.int32))
        self.register_buffer("head", target.head[draft_ids], persistent=False)
        self.register_buffer("sizes", sizes, persistent=False)
        self.to(target.device)

    def forward(self, anchors: Tensor, ids: Tensor, features: Tensor) -> Tensor:
        """Logits over `draft_ids`, `[rows, anchors, block - 1, len(draft_ids)]`.

        `anchors` are positions, `[rows, anchors]`, `ids` the tokens at them. A block sees itself
        and the `features` (`[rows, length, taps * hidden]`) before its anchor, not those of other
        blocks.
        """
        rows, count = anchors.shape
        block, length = self.plan.block, features.shape[1]
        noise = ids.new_full((rows, count, block), self.plan.mask_id)
        noise[:, :, 0] = ids
        x = self.target.embedding[noise].flatten(1, 2).float()
        context = self.hidden_norm(F.linear(features, self.fc.weight / self.sizes))
        places = torch.arange(length, device=anchors.device)
        within = torch.arange(block, device=anchors.device)
        positions = torch.cat(
            [places.expand(rows, -1), (anchors[:, :, None] + within).flatten(1)], 1
        )
        angles = rope_angles(positions, self.target.head_dim, self.target.theta)[:, None]
        before = (places < anchors[:, :, None]).repeat_interleave(block, 1)
        owner = torch.arange(count, device=anchors.device).repeat_interleave(block)
        own = (owner[:, None] == owner).expand(rows, -1, -1)
        visible = torch.cat([before, own], 2)[:, None]
        for layer in self.layers:
            x = layer(x, context, angles, visible)
        drafted = self.norm(x).unflatten(1, (count, block))[:, :, 1:]
        with torch.autocast(drafted.device.type, enabled=False):
            return F.linear(drafted, self.head)

    def save(self, folder: Path, target_sha256: str) -> None:
        """Writes `model.safetensors` (bfloat16) and `config.json`, each whole or not at all."""
        state = self.state_dict()
        state["fc.weight"] = state["fc.weight"] / self.sizes
        tensors = {
            name: tensor.to("cpu", torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in state.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.part", metadata={"format": "pt"})
        os.replace(folder / "model.part", folder / "model.safetensors")
        (folder / "config.part").write_text(json.dumps(self._config(target_sha256), indent=2))
        os.replace(folder / "config.part", folder / "config.json")

    def _config(self, target_sha256: str) -> dict[str, Any]:
        target, plan = self.target, self.plan
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": target.hidden,
            "intermediate_size": target.intermediate,
            "num_hidden_layers": plan.layers,
            "num_attention_heads": target.heads,
            "num_key_value_heads": target.kv_heads,
            "head_dim": target.head_dim,
            "rope_theta": target.theta,
            "rms_norm_eps": target.eps,
            "vocab_size": target.vocabulary,
            "num_target_layers": target.layers,
            "is_causal": False,
            "block_size": plan.block,
            "dflash_config": {
                "block_size": plan.block,
                "mask_token_id": plan.mask_id,
                "target_layer_ids": list(plan.taps),
            },
            "target_sha256": target_sha256,
        }


class _Layer(nn.Module):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self.input_layernorm = _Norm(target.hidden, target.eps)
        self.self_attn = _Attention(target)
        self.post_attention_layernorm = _Norm(target.hidden, target.eps)
        self.mlp = _Mlp(target)

    def forward(self, x: Tensor, context: Tensor, angles: Tensor, visible: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, angles, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Attention(nn.Module):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self._head_dim = target.head_dim
        queries, keys = target.heads * target.head_dim, target.kv_heads * target.head_dim
        self.q_proj = _linear(target.hidden, queries)
        self.k_proj = _linear(target.hidden, keys)
        self.v_proj = _linear(target.hidden, keys)
        self.o_proj = _linear(queries, target.hidden)
        self.q_norm = _Norm(target.head_dim, target.eps)
        self.k_norm = _Norm(target.head_dim, target.eps)

    def forward(self, x: Tensor, context: Tensor, angles: Tensor, visible: Tensor) -> Tensor:
        seen = torch.cat([context, x.to(context.dtype)], 1)
        queries = rotated(self.q_norm(self._heads(self.q_proj(x))), angles[:, :, -x.shape[1] :])
        keys = rotated(self.k_norm(self._heads(self.k_proj(seen))), angles)
        values = self._heads(self.v_proj(seen))
        shared = queries.shape[1] // keys.shape[1]
        mixed = F.scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(shared, 1),
            values.repeat_interleave(shared, 1),
            attn_mask=visible,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self._head_dim)).transpose(1, 2)


class _Mlp(nn.Module):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self.gate_proj = _linear(target.hidden, target.intermediate)
        self.up_proj = _linear(target.hidden, target.intermediate)
        self.down_proj = _linear(target.intermediate, target.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self._eps)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=0.02)
    return linear

"""A companion of a few kilobytes for a tiny model: DFlash's or DFlash2's network, with random
weights, as its authors write it down."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

BLOCK = 8
_HEADS, _KEY_HEADS, _HEAD, _FEED_FORWARD, _LAYERS = 4, 2, 8, 48, 2
_TAPS, _GROUP, _RANK, _BEST = 2, 8, 6, 4


def write_tiny_companion(
    folder: Path,
    target: Path,
    *,
    second: bool = False,
    window: int = 0,
    everywhere: bool = False,
    causal: bool = False,
    draft_ids: Sequence[int] | None = None,
    target_layers: Sequence[int] = (0, 1),
) -> Path:
    """For the model in `target`. With a `window`, its last layer sees no more than that,
    or all do, `everywhere`."""
    folder.mkdir(parents=True)
    model = json.loads((target / "config.json").read_text())
    model = model.get("text_config", model)
    hidden, vocabulary = model["hidden_size"], model["vocab_size"]
    own: dict[str, Any] = {
        "block_size": BLOCK,
        "mask_token_id": 0,
        "target_layer_ids": list(target_layers),
    }
    if second:
        own |= {"conv_kernel_size": _TAPS, "conv_group_size": _GROUP, "selector_rank": _RANK}
        own |= {"selector_top_k": _BEST, "output_multiplier": 0.3, "final_logit_softcapping": 5.0}
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": _FEED_FORWARD,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KEY_HEADS,
        "head_dim": _HEAD,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "num_target_layers": model["num_hidden_layers"],
        "is_causal": causal,
        "dflash_config": own,
    }
    if window:
        others = "sliding_attention" if everywhere else "full_attention"
        kinds = [others] * (_LAYERS - 1) + ["sliding_attention"]
        config |= {"layer_types": kinds, "sliding_window": window}
    weights = _weights(hidden, vocabulary, len(target_layers), second)
    if draft_ids is not None:
        weights["draft_ids"] = np.array(draft_ids, np.int32)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def _weights(hidden: int, vocabulary: int, features: int, second: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    weights = {
        "fc.weight": matrix(hidden, features * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for layer in range(_LAYERS):
        prefix = f"layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        weights |= {
            attention + "q_proj.weight": matrix(_HEADS * _HEAD, hidden),
            attention + "k_proj.weight": matrix(_KEY_HEADS * _HEAD, hidden),
            attention + "v_proj.weight": matrix(_KEY_HEADS * _HEAD, hidden),
            attention + "o_proj.weight": matrix(hidden, _HEADS * _HEAD),
            attention + "q_norm.weight": norm(_HEAD),
            attention + "k_norm.weight": norm(_HEAD),
            mlp + "gate_proj.weight": matrix(_FEED_FORWARD, hidden),
            mlp + "up_proj.weight": matrix(_FEED_FORWARD, hidden),
            mlp + "down_proj.weight": matrix(hidden, _FEED_FORWARD),
            prefix + "input_layernorm.weight": norm(hidden),
            prefix + "post_attention_layernorm.weight": norm(hidden),
        }
        for name in ("attention_conv.", "mlp_conv.") if second else ():
            kernels = 2 * _TAPS * hidden // _GROUP
            weights[f"{prefix}{name}base_kernel"] = matrix(2, _TAPS, hidden)
            weights[f"{prefix}{name}kernel_projection.weight"] = matrix(kernels, hidden)
    if second:
        weights |= {
            "candidate_selector.predecessor_codebook": matrix(vocabulary, _RANK),
            "candidate_selector.successor_codebook": matrix(vocabulary, _RANK),
            "candidate_selector.hidden_projection.weight": matrix(_RANK, hidden),
        }
    return weights

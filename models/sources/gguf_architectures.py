"""What llama.cpp does to each architecture when it makes a GGUF file, and the way back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.catalog import CheckpointError
from models.sources.gguf_metadata import Metadata

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """The way from a GGUF file of one architecture to config.json and the tensors it names.

    `layer_names` maps the names of a layer's tensors, all of which a file must have; `config` makes
    config.json as Hugging Face writes it; `restored` takes a tensor's GGUF name, its float32
    weights and that configuration, and undoes what llama.cpp did to the weights.
    """

    layer_names: dict[str, str]
    config: Callable[[Metadata], dict[str, Any]]
    restored: Callable[[str, Array, dict[str, Any]], Array]


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises `CheckpointError` that names an architecture nobody here knows."""
    name = metadata.text("general.architecture")
    if name not in _ARCHITECTURES:
        *others, last = _ARCHITECTURES
        raise CheckpointError(
            f"GGUF files of the {name} architecture are not supported ({', '.join(others)} and "
            f"{last} are): use an MLX or Hugging Face folder of this model"
        )
    return _ARCHITECTURES[name]


def unsupported(what: str) -> CheckpointError:
    return CheckpointError(
        f"this GGUF file is not supported, for {what}: use an MLX or Hugging Face folder of the "
        "same model"
    )


def _common(metadata: Metadata) -> dict[str, Any]:
    name = metadata.text("general.architecture")
    hidden = metadata.integer(f"{name}.embedding_length")
    heads = metadata.integer(f"{name}.attention.head_count")
    head_dim = metadata.get(f"{name}.attention.key_length", hidden // heads)
    if metadata.get(f"{name}.rope.scaling.type", "none") != "none":
        raise unsupported("its scaled rotary positions")
    if metadata.get(f"{name}.rope.dimension_count", head_dim) != head_dim:
        raise unsupported("its rotary positions over a part of each head")
    return {
        "hidden_size": hidden,
        "intermediate_size": metadata.integer(f"{name}.feed_forward_length"),
        "num_hidden_layers": metadata.integer(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.decimal(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.decimal(f"{name}.rope.freq_base"),
        "max_position_embeddings": metadata.integer(f"{name}.context_length"),
        "vocab_size": len(metadata.texts("tokenizer.ggml.tokens")),
        "torch_dtype": "float32",
    }


def _llama_config(metadata: Metadata) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **_common(metadata),
    }


def _qwen2_config(metadata: Metadata) -> dict[str, Any]:
    config = _common(metadata)
    # Not written down in a qwen2 configuration: it follows from the two others.
    if config.pop("head_dim") * config["num_attention_heads"] != config["hidden_size"]:
        raise unsupported("its heads, which do not divide its hidden size")
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        **config,
    }


def _gemma3_config(metadata: Metadata) -> dict[str, Any]:
    config = _common(metadata)
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        **config,
        # What the file leaves out, since it is so in every Gemma 3 without scaled positions: the
        # larger ones have them and are refused above.
        "query_pre_attn_scalar": config["head_dim"],
        "rope_local_base_freq": metadata.get("gemma3.rope.freq_base_swa", 10_000.0),
        "sliding_window_pattern": 6,
        "sliding_window": metadata.integer("gemma3.attention.sliding_window"),
    }


def _as_stored(name: str, weights: Array, config: dict[str, Any]) -> Array:
    return weights


def _pairs_apart(name: str, weights: Array, config: dict[str, Any]) -> Array:
    """Undo llama.cpp's order of query and key rows.

    It interleaves the two halves of each head's rotary pairs: (head, pair, half) rows; the model
    wants (head, half, pair).
    """
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if part not in heads:
        return weights
    rows, columns = weights.shape
    pairs = weights.reshape(heads[part], -1, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _norms_around_zero(name: str, weights: Array, config: dict[str, Any]) -> Array:
    """Gemma multiplies by 1 + w and keeps w; llama.cpp stores the sum."""
    return weights - 1 if name.endswith("norm.weight") else weights


_LLAMA_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_QWEN2_NAMES = _LLAMA_NAMES | {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
_GEMMA3_NAMES = _LLAMA_NAMES | {
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}

_ARCHITECTURES = {
    "llama": Architecture(_LLAMA_NAMES, _llama_config, _pairs_apart),
    "qwen2": Architecture(_QWEN2_NAMES, _qwen2_config, _as_stored),
    "gemma3": Architecture(_GEMMA3_NAMES, _gemma3_config, _norms_around_zero),
}

"""GGUF files of the llama architecture, converted to an MLX folder.

Weights become float32, exactly what the file's blocks stand for: on a CPU that is the fast form,
and quantising again for a device starts from it without a second loss.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from models.catalog import CheckpointError
from models.safetensors_file import write_float32
from models.sources.gguf_metadata import Metadata
from models.sources.gguf_tokenizer import write_tokenizer
from models.sources.progress import Advance, stage

Array = np.ndarray[Any, np.dtype[np.float32]]

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
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

ARCHITECTURE = "llama"
# Types whose blocks the gguf package turns into float32.
READABLE = {
    *(T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0),
    *(T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K),
}


def convert(gguf: Path, out: Path) -> None:
    """Write the MLX folder `out` from the file `gguf`, one tensor in memory at a time.

    Raises `CheckpointError` that names the architecture, tensor, tensor type or tokenizer that is
    not supported.
    """
    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError) as error:
        raise CheckpointError(
            f"{gguf.name} is not a readable GGUF file ({error}): pull or copy it again"
        ) from error
    metadata = Metadata(reader)
    config = _config(metadata, tied="output.weight" not in {t.name for t in reader.tensors})
    sources = _sources(reader, config)
    out.mkdir()
    ends = write_tokenizer(metadata, out)
    _write_json(out / "config.json", {**config, **ends})
    _write_json(out / "generation_config.json", ends)
    shapes = {name: _shape(tensor) for name, tensor in sources.items()}
    with stage("converting", sum(int(t.n_bytes) for t in reader.tensors)) as advance:
        write_float32(out / "model.safetensors", shapes, _dense(sources, config, advance))


def _config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """config.json as Hugging Face writes it for a Llama model."""
    found = metadata.text("general.architecture")
    if found != ARCHITECTURE:
        raise CheckpointError(
            f"GGUF files of the {found} architecture are not supported: "
            f"use one of the {ARCHITECTURE} architecture, or an MLX folder of this model"
        )
    if metadata.get("llama.rope.scaling.type", "none") != "none":
        raise _unsupported("its scaled rotary positions")
    hidden = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    head_dim = metadata.get("llama.attention.key_length", hidden // heads)
    if metadata.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise _unsupported("its rotary positions over a part of each head")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": metadata.decimal("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.decimal("llama.rope.freq_base"),
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "vocab_size": len(metadata.texts("tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
    }


def _sources(reader: GGUFReader, config: dict[str, Any]) -> dict[str, ReaderTensor]:
    """The file's tensors by the name they get; every one is known, and every expected one there."""
    sources: dict[str, ReaderTensor] = {}
    for tensor in reader.tensors:
        name = _new_name(tensor.name)
        if name is None:
            raise _unsupported(f"its tensor {tensor.name}")
        if tensor.tensor_type not in READABLE:
            raise _unsupported(f"{tensor.tensor_type.name} (tensor {tensor.name})")
        sources[name] = tensor
    layers = range(config["num_hidden_layers"])
    expected = {f"model.layers.{i}.{name}" for i in layers for name in LAYER_NAMES.values()}
    expected |= {TOP_NAMES["token_embd.weight"], TOP_NAMES["output_norm.weight"]}
    missing = sorted(expected - sources.keys())
    if missing:
        raise CheckpointError(
            f"the GGUF file lacks {missing[0]} ({len(missing)} tensors are missing): get it again"
        )
    return sources


def _new_name(name: str) -> str | None:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    block, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if block != "blk" or part not in LAYER_NAMES:
        return None
    return f"model.layers.{layer}.{LAYER_NAMES[part]}"


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """GGUF counts dimensions from the innermost."""
    return tuple(int(n) for n in reversed(tensor.shape))


def _dense(
    sources: dict[str, ReaderTensor], config: dict[str, Any], advance: Advance
) -> Iterator[Array]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in sources.values():
        weights = dequantize(tensor.data, tensor.tensor_type).reshape(_shape(tensor))
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                weights = _halves_first(weights, count)
        yield weights
        advance(int(tensor.n_bytes))


def _halves_first(weights: Array, heads: int) -> Array:
    """Undo llama.cpp's order of query and key rows.

    It interleaves the two halves of each head's rotary pairs: (head, pair, half) rows; the model
    wants (head, half, pair).
    """
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _unsupported(what: str) -> CheckpointError:
    return CheckpointError(
        f"this GGUF file is not supported, for {what}: use an MLX or Hugging Face folder of the "
        "same model"
    )


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))

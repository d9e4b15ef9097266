"""What distinguishes qwen2 and gemma3 from llama, on tiny random files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize
from safetensors.numpy import load_file

from models.catalog import Sampling, inspect
from models.sources.gguf import convert
from tests.models.sources.tiny import HEAD, HIDDEN, TOKENS, weights, write_gguf

GREEDY_TOKENS = Path(__file__).parents[1] / "fixtures" / "greedy_tokens.py"


def converted(folder: Path, architecture: str, **changes: object) -> dict[str, np.ndarray]:
    pre = "qwen2" if architecture == "qwen2" else "smollm"
    file = write_gguf(folder / "tiny.gguf", architecture=architecture, pre=pre, **changes)
    convert(file, folder / "out")
    return load_file(folder / "out" / "model.safetensors")


def configuration(folder: Path) -> dict[str, object]:
    return json.loads((folder / "out" / "config.json").read_text())


def test_qwen2_has_biases_and_its_rows_as_they_are(tmp_path: Path):
    tensors = converted(tmp_path, "qwen2")
    original = weights("qwen2")
    for part in ("q", "k", "v"):
        for kind in ("weight", "bias"):
            name = f"model.layers.1.self_attn.{part}_proj.{kind}"
            np.testing.assert_array_equal(tensors[name], original[f"blk.1.attn_{part}.{kind}"])
    assert configuration(tmp_path)["model_type"] == "qwen2"
    assert "head_dim" not in configuration(tmp_path)


def test_gemma3_norms_are_kept_around_zero_and_its_four_norms_a_layer_are_told_apart(
    tmp_path: Path,
):
    tensors = converted(tmp_path, "gemma3")
    original = weights("gemma3")
    for new, old in {
        "model.norm": "output_norm",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.post_attention_norm",
        "model.layers.0.pre_feedforward_layernorm": "blk.0.ffn_norm",
        "model.layers.0.post_feedforward_layernorm": "blk.0.post_ffw_norm",
        "model.layers.1.self_attn.q_norm": "blk.1.attn_q_norm",
        "model.layers.1.self_attn.k_norm": "blk.1.attn_k_norm",
    }.items():
        np.testing.assert_array_equal(tensors[f"{new}.weight"], original[f"{old}.weight"] - 1)
    name = "model.layers.1.self_attn.k_proj.weight"
    np.testing.assert_array_equal(tensors[name], original["blk.1.attn_k.weight"])
    expected = {
        "model_type": "gemma3_text",
        "head_dim": HEAD,
        "query_pre_attn_scalar": HEAD,
        "sliding_window": 8,
        "sliding_window_pattern": 6,
        "rope_theta": 50_000.0,
        "rope_local_base_freq": 10_000.0,
    }
    assert configuration(tmp_path) | expected == configuration(tmp_path)


def test_a_second_copy_of_the_embedding_is_dropped_and_the_better_one_used(tmp_path: Path):
    embedding = weights("qwen2")["token_embd.weight"]
    coarse, fine = quantize(embedding, T.Q4_0), quantize(embedding, T.Q8_0)
    tensors = converted(
        tmp_path,
        "qwen2",
        tensors=weights("qwen2") | {"token_embd.weight": coarse, "output.weight": fine},
        types={"token_embd.weight": T.Q4_0, "output.weight": T.Q8_0},
    )
    assert configuration(tmp_path)["tie_word_embeddings"] is True
    assert "lm_head.weight" not in tensors
    steps = np.abs(embedding).reshape(-1, 32).max(axis=1) / 127  # of Q8_0's blocks
    error = np.abs(tensors["model.embed_tokens.weight"] - embedding).reshape(-1, 32).max(axis=1)
    assert (error < steps * 0.6).all()


@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_mlx_lm_loads_what_was_converted(tmp_path: Path, architecture: str):
    converted(tmp_path, architecture)
    done = subprocess.run(
        [sys.executable, str(GREEDY_TOKENS), str(tmp_path / "out"), "2"],
        input=json.dumps([[2, 5, 9]]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)[0]) == 2


def test_stop_tokens_and_sampling_of_the_catalog_are_the_folders_defaults(tmp_path: Path):
    file = write_gguf(tmp_path / "tiny.gguf", architecture="qwen2", pre="qwen2")
    sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20)
    convert(file, tmp_path / "out", stop_tokens=("<tool>",), sampling=sampling)
    checkpoint = inspect(tmp_path / "out")
    assert checkpoint.stop_ids == {0, TOKENS.index("<tool>")}
    assert checkpoint.sampling == sampling


# One block of each type that the packaged files use, by ggml's own definition of it.


def as_floats(half: bytes) -> float:
    return float(np.frombuffer(half, np.float16)[0])


def q8_0(block: bytes) -> list[float]:
    scale, steps = as_floats(block[:2]), np.frombuffer(block[2:], np.int8)
    return [scale * int(step) for step in steps]


def q5_0(block: bytes) -> list[float]:
    scale, high = as_floats(block[:2]), int.from_bytes(block[2:6], "little")
    low = [byte & 15 for byte in block[6:]] + [byte >> 4 for byte in block[6:]]
    return [scale * ((each | (high >> i & 1) << 4) - 16) for i, each in enumerate(low)]


def q4_k(block: bytes) -> list[float]:
    scale, floor, packed = as_floats(block[:2]), as_floats(block[2:4]), block[4:16]
    values: list[float] = []
    for group in range(8):
        if group < 4:
            factor, offset = packed[group] & 63, packed[group + 4] & 63
        else:
            factor = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            offset = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        bytes_ = block[16 + group // 2 * 32 :][:32]
        steps = [byte >> 4 if group % 2 else byte & 15 for byte in bytes_]
        values += [scale * factor * step - floor * offset for step in steps]
    return values


def q6_k(block: bytes) -> list[float]:
    low, high = block[:128], block[128:192]
    factors, scale = np.frombuffer(block[192:208], np.int8), as_floats(block[208:])
    values: list[float] = []
    for place in range(256):
        half, quarter, column = place // 128, place % 128 // 32, place % 32
        byte = low[half * 64 + quarter % 2 * 32 + column]
        step = (byte >> 4 if quarter >= 2 else byte & 15) | (
            high[half * 32 + column] >> 2 * quarter & 3
        ) << 4
        values.append(scale * int(factors[place // 16]) * (step - 32))
    return values


@pytest.mark.parametrize(
    ("type", "block_bytes", "scales", "decode"),
    [
        (T.Q8_0, 34, (0,), q8_0),
        (T.Q5_0, 22, (0,), q5_0),
        (T.Q4_K, 144, (0, 2), q4_k),
        (T.Q6_K, 210, (208,), q6_k),
    ],
)
def test_quantised_blocks_become_exactly_what_they_stand_for(
    tmp_path: Path, type: T, block_bytes: int, scales: tuple[int, ...], decode: object
):
    random = np.random.default_rng(5)
    blocks = random.integers(0, 256, (HIDDEN, block_bytes), np.uint8)
    for place in scales:
        halves = random.uniform(0.001, 0.1, (HIDDEN, 1)).astype(np.float16)
        blocks[:, place : place + 2] = halves.view(np.uint8)
    name = "blk.0.ffn_down.weight"
    tensors = converted(
        tmp_path, "qwen2", tensors=weights("qwen2") | {name: blocks}, types={name: type}
    )
    expected = [decode(block.tobytes()) for block in blocks]
    got = tensors["model.layers.0.mlp.down_proj.weight"]
    np.testing.assert_array_almost_equal_nulp(got, np.array(expected, np.float32), nulp=4)

"""A complete model folder of a few kilobytes: the real llama architecture with random weights.

Its tokenizer has one token for each byte, and ChatML's markers.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN, FEED_FORWARD, LAYERS, HEADS, HEAD = 32, 64, 2, 2, 16
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DEFAULT_SYSTEM = "You are tiny."
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + DEFAULT_SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_checkpoint(folder: Path, *, context_tokens: int = 4096) -> Path:
    folder.mkdir(parents=True)
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    vocabulary = tokenizer.get_vocab_size()
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": context_tokens,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "eos_token_id": end,
    }
    tokenizer_config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    save_file(_weights(vocabulary), folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in MARKERS])
    return tokenizer


def _weights(vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.3, (rows, columns)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in "qkvo":
            weights[f"{prefix}self_attn.{name}_proj.weight"] = matrix(HIDDEN, HIDDEN)
        weights[prefix + "mlp.gate_proj.weight"] = matrix(FEED_FORWARD, HIDDEN)
        weights[prefix + "mlp.up_proj.weight"] = matrix(FEED_FORWARD, HIDDEN)
        weights[prefix + "mlp.down_proj.weight"] = matrix(HIDDEN, FEED_FORWARD)
        weights[prefix + "input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        weights[prefix + "post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    return weights

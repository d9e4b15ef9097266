"""A tiny checkpoint of Qwen3.5's own architecture: three layers of four have a recurrent state."""

import json
from pathlib import Path
from typing import Any

from tests.support.random_weights import write_random_weights
from tests.support.tiny_qwen import write_tiny_qwen


def write_tiny_hybrid(folder: Path) -> Path:
    write_tiny_qwen(folder, "qwen3.5")
    config = json.loads((folder / "config.json").read_text())
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    kept += ("head_dim", "rms_norm_eps", "max_position_embeddings", "vocab_size")
    text: dict[str, Any] = {name: config[name] for name in kept} | {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "tie_word_embeddings": True,
    }
    model = {"model_type": "qwen3_5", "text_config": text, "eos_token_id": config["eos_token_id"]}
    (folder / "config.json").write_text(json.dumps(model | {"tie_word_embeddings": True}))
    return write_random_weights(folder)

"""Tiny models that never come to an end of their own."""

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

from tests.support.tiny_checkpoint import MARKERS, byte_tokenizer

# The first of the hidden numbers is large in every place, and all that markers are scored by.
_LARGE, _NEVER = 30.0, -100.0


def without_end(model: Path) -> Path:
    """The tiny checkpoint in that folder, with no marker among what it would ever say: families
    have stop ids of their own, whatever a configuration calls the end."""
    weights = load_file(model / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    head = embedding.copy()
    head[:, 0] = 0
    markers = [byte_tokenizer().token_to_id(marker) for marker in MARKERS]
    head[markers] = 0
    head[markers, 0] = _NEVER
    embedding[:, 0] = _LARGE
    weights["lm_head.weight"] = head
    save_file(weights, model / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return model

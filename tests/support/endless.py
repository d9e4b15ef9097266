"""Tiny models that never come to an end of their own."""

import json
from pathlib import Path

_NEVER = 1_000_000  # an id that is no token's


def without_end(model: Path) -> Path:
    """The model in that folder, of which nothing ends an answer but its budget."""
    for name in ("config.json", "generation_config.json"):
        _change(model / name, eos_token_id=_NEVER)
    _change(model / "tokenizer_config.json", eos_token=None)
    return model


def _change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))

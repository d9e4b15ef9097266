"""More context for tiny models, of whose conversations each byte is a token."""

import json
from pathlib import Path


def with_context(model: Path, tokens: int) -> Path:
    file = model / "config.json"
    config = json.loads(file.read_text())
    for each in (config, config.get("text_config", {})):
        each["max_position_embeddings"] = tokens
    file.write_text(json.dumps(config))
    return model

"""The drafter that has weights, of the model that is being loaded."""

# pyright: basic

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from models.engine.loading import load
from models.speculation.companion import Companion
from models.speculation.companion_config import CompanionConfig
from models.speculation.draft_model import DraftModel
from models.speculation.drafter import Drafter
from models.speculation.rollback import can_roll_back


def load_drafter(
    folder: Path, target: nn.Module, chunk_tokens: int, alive: Callable[[], None]
) -> tuple[Drafter, dict[str, Any]]:
    """The companion or the draft model in `folder`, and its facts for people. `alive` is called
    while it loads. Raises ValueError, with a sentence that says what to do, and what mlx-lm's
    loader raises."""
    config = json.loads((folder / "config.json").read_text())
    if CompanionConfig.is_one(config):
        try:
            companion = Companion.load(folder, target)
        except ValueError as error:
            raise ValueError(f"the companion {folder.name} cannot be used: {error}") from error
        return companion, _facts("DFlash companion", folder, companion.size_bytes)
    loaded = load(folder, lambda done, total: alive())
    if not can_roll_back(make_prompt_cache(loaded.model)):
        raise ValueError(
            f"{folder.name} cannot draft, since what it has read cannot be taken back: "
            "use another --draft-model"
        )
    drafter = DraftModel(loaded.model, target, chunk_tokens)
    return drafter, _facts("draft model", folder, loaded.size_bytes)


def _facts(kind: str, folder: Path, size_bytes: int) -> dict[str, Any]:
    return {"kind": kind, "name": folder.name, "weights_bytes": size_bytes}

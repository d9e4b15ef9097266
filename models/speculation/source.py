"""Which weights draft for a model: those that were asked for, or the companion shipped for it.

Light enough for the HTTP process: reads JSON, tokenizers and the headers of weights.
"""

import os
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from models.catalog import Checkpoint, CheckpointError, read_json, resolve, weight_files
from models.speculation.companion_config import CompanionConfig

_SHIPPED = Path(__file__).parent / "companions"


def drafter_of(checkpoint: Checkpoint, asked: str | None, models_dir: Path) -> Path | None:
    """The folder of what drafts for the model: an installed model or a folder that was `asked` for
    by name, or else the companion that is shipped for these very weights; None if there is none.

    Raises CheckpointError if what was asked for is not there, or drafts for other models.
    """
    if asked is None:
        return _shipped_for(checkpoint)
    folder = Path(os.path.expanduser(asked))
    if CompanionConfig.is_one(read_json(folder / "config.json", optional=True)):
        _check_companion(folder, checkpoint)
        return folder
    draft = resolve(asked, models_dir)
    if draft.path != checkpoint.path and not _same_tokens(draft.path, checkpoint.path):
        raise CheckpointError(
            f"{draft.id} cannot draft for {checkpoint.id}, since its tokens are others: use a "
            "--draft-model with the same tokenizer, such as a smaller one of the same generation"
        )
    return draft.path


def _shipped_for(checkpoint: Checkpoint) -> Path | None:
    folder = _SHIPPED / checkpoint.id
    made_for = read_json(folder / "config.json", optional=True).get("target_sha256")
    is_made_for_it = made_for is not None and made_for == checkpoint.weights_sha256
    return folder if is_made_for_it else None


def _check_companion(folder: Path, checkpoint: Checkpoint) -> None:
    weight_files(folder)
    try:
        companion = CompanionConfig.of(read_json(folder / "config.json"))
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'config.json'} {error}: copy it again") from error
    whole = read_json(checkpoint.path / "config.json")
    config = cast(dict[str, Any], whole.get("text_config", whole))
    depth = config.get("num_hidden_layers")
    for what, of_companion, of_model in (
        ("channels", companion.hidden, config.get("hidden_size")),
        ("layers", companion.target_depth, depth),
    ):
        if of_companion is not None and of_companion != of_model:
            raise CheckpointError(
                f"{folder} was made for a model of {of_companion} {what}, and {checkpoint.id} has "
                f"{of_model}: use the companion that was trained for {checkpoint.id}"
            )
    if depth is not None and companion.target_layers[-1] >= depth:
        raise CheckpointError(
            f"{folder} reads layer {companion.target_layers[-1]}, counted from 0, and "
            f"{checkpoint.id} has {depth}: use the companion that was trained for {checkpoint.id}"
        )


def _same_tokens(one: Path, other: Path) -> bool:
    files = [folder / "tokenizer.json" for folder in (one, other)]
    try:
        first, second = (file.read_bytes() for file in files)
        if first == second:
            return True
        ids = (Tokenizer.from_buffer(each).get_vocab() for each in (first, second))
        return next(ids) == next(ids)
    except Exception as error:  # tokenizers raises no narrower kind
        raise CheckpointError(f"a tokenizer.json cannot be read: {error}") from error

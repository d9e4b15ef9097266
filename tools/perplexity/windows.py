"""A text as the windows of tokens that every model is asked about."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from models.catalog import Checkpoint, CheckpointError


@dataclass(frozen=True, slots=True)
class Windows:
    """`ids` [windows, tokens], uint32. The tokens after the first `given` of each are scored."""

    ids: "np.ndarray[tuple[int, int], np.dtype[np.uint32]]"
    given: int

    @property
    def positions(self) -> int:
        windows, tokens = self.ids.shape
        return windows * (tokens - self.given)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.ids.astype("<u4").tobytes()).hexdigest()


def windows_of(text: str, tokens: int, checkpoints: Sequence[Checkpoint]) -> Windows:
    """`text` in windows of so many `tokens`, without its incomplete end; each begins with what the
    tokenizer puts at the beginning of a text, or else its first token is given. Raises
    CheckpointError where the checkpoints do not make the same tokens of it."""
    found = [_ids(text, each.path) for each in checkpoints]
    for checkpoint, each in zip(checkpoints, found, strict=True):
        if each != found[0]:
            raise CheckpointError(
                f"{checkpoint.id} makes other tokens of the text than {checkpoints[0].id}: only "
                "models with the same tokenizer can be compared"
            )
    beginning, ids = found[0]
    own = tokens - len(beginning)
    rows = [[*beginning, *ids[at : at + own]] for at in range(0, len(ids) - own + 1, own)]
    if own < 2 or not rows:
        raise CheckpointError(
            f"the text has {len(ids)} tokens, which is no window of {tokens}: give a longer one"
        )
    return Windows(np.array(rows, np.uint32), max(1, len(beginning)))


def _ids(text: str, folder: Path) -> tuple[list[int], list[int]]:
    """What begins every text, and the text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.encode("").ids, tokenizer.encode(text, add_special_tokens=False).ids

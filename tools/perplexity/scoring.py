"""What one model says of all windows, in a process of its own: a BLAS has to be loaded before MLX
is, and the memory of one model must be free before the next one comes."""

# pyright: basic

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.catalog import Checkpoint, CheckpointError
from tools.perplexity.windows import Windows

_TOKENS_AT_ONCE = 256  # whose logits are in memory


@dataclass(frozen=True, slots=True)
class Scores:
    """`losses` [windows, positions] in nats, float32: minus the logarithm of the probability of
    the text's token. `choices` [windows, positions]: the likeliest token."""

    losses: "np.ndarray[Any, np.dtype[np.float32]]"
    choices: "np.ndarray[Any, np.dtype[np.uint32]]"

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.losses.mean(dtype=np.float64)))


def scores_of(checkpoint: Checkpoint, windows: Windows) -> Scores:
    """Loads the model as the engine does. Raises CheckpointError."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "windows.npz", Path(folder) / "scores.npz"
        np.savez(asked, ids=windows.ids, given=windows.given)
        command = [sys.executable, "-P", "-m", __name__, str(checkpoint.path)]
        if subprocess.run([*command, str(asked), str(told)]).returncode:
            raise CheckpointError(f"{checkpoint.id} could not be scored: what it said is above")
        with np.load(told) as found:
            return Scores(found["losses"], found["choices"])


def main(folder: str, asked: str, told: str) -> None:
    from models.engine import blas

    blas.preload()
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from models.engine.loading import load

    model: Any = load(Path(folder), lambda done, total: None).model
    with np.load(asked) as found:
        ids, given = found["ids"], int(found["given"])
    losses, choices = [], []
    for number, row in enumerate(ids):
        print(f"\r{Path(folder).name}: window {number + 1} of {len(ids)}", end="", file=sys.stderr)
        tokens, cache = mx.array(row)[None], make_prompt_cache(model)
        for start in range(0, len(row) - 1, _TOKENS_AT_ONCE):
            stop = min(start + _TOKENS_AT_ONCE, len(row) - 1)
            logits = model(tokens[:, start:stop], cache=cache)[0].astype(mx.float32)
            following = tokens[0, start + 1 : stop + 1]
            chosen = mx.take_along_axis(logits, following[:, None], axis=-1)[:, 0]
            loss, choice = mx.logsumexp(logits, axis=-1) - chosen, mx.argmax(logits, axis=-1)
            mx.eval(loss, choice)
            losses.append(np.array(loss))
            choices.append(np.array(choice))
    print(file=sys.stderr)
    shape = len(ids), -1
    np.savez(
        told,
        losses=np.concatenate(losses).reshape(shape)[:, given - 1 :],
        choices=np.concatenate(choices).reshape(shape)[:, given - 1 :],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

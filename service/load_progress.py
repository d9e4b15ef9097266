"""How far the engine is with loading the model: a bar for people, one line for logs."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tqdm import tqdm

from models.engine.host import EngineStatus


@contextmanager
def load_progress(model: str) -> Generator[Callable[[EngineStatus], None]]:
    """Yields what is to be told each change of the engine's status."""
    bar = tqdm(
        desc=f"loading {model}",
        total=0,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=not sys.stderr.isatty(),
    )
    if bar.disable:
        print(f"loading {model}", file=sys.stderr, flush=True)

    def tell(status: EngineStatus) -> None:
        bar.total = status.total_bytes
        bar.update(status.loaded_bytes - bar.n)

    with bar:
        yield tell

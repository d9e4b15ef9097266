"""Progress of a long step on stderr: a bar for people, one line for logs."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tqdm import tqdm

Advance = Callable[[int], object]


@contextmanager
def stage(title: str, total_bytes: int) -> Generator[Advance]:
    """Announce a step; yields a function to call with each number of bytes done."""
    if not sys.stderr.isatty():
        announce(title)
        yield lambda done: None
        return
    with tqdm(desc=title, total=total_bytes, unit="B", unit_scale=True, file=sys.stderr) as bar:
        yield lambda done: bar.update(done)


def announce(title: str) -> None:
    """Say on stderr which step begins."""
    print(title, file=sys.stderr, flush=True)

"""Memory of a process, watched from outside."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_EVERY_SECONDS = 0.005


@contextmanager
def watching(process: psutil.Process) -> Iterator[list[int]]:
    """Bytes of resident memory, again and again; the first are those before the block."""
    seen = [process.memory_info().rss]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            seen.append(process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()

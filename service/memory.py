"""Memory that was freed, given back to the system."""

import ctypes
from collections.abc import Callable
from typing import cast


def give_back_freed_memory() -> None:
    """Slow (up to 0.1 s): to be called off the event loop. Does nothing where the C library
    cannot be asked."""
    if _trim is not None:
        _trim(0)


def _find_trim() -> Callable[[int], int] | None:
    # glibc keeps what a thread has freed for that thread; after one huge prompt in each thread
    # that would be most of the process.
    try:
        return cast(Callable[[int], int], ctypes.CDLL(None).malloc_trim)
    except (AttributeError, OSError):
        return None


_trim = _find_trim()

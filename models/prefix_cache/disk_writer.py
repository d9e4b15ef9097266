"""A thread that does what may take long, in the order in which it was asked."""

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("mererun.prompt_cache")


class Writer:
    """What waits to be written holds at most `limit_bytes`; more is refused."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        # A daemon, since the process may end at any time: files appear whole or not at all.
        self._thread = threading.Thread(target=self._work, name="prompt cache", daemon=True)
        self._thread.start()

    def has_room(self, nbytes: int) -> bool:
        """Whether a task that holds so many bytes would be taken now. Only tasks' ends change it,
        as long as one thread offers them."""
        with self._lock:
            return self._waiting_bytes + nbytes <= self._limit_bytes

    def offer(self, task: Callable[[], None], nbytes: int = 0) -> None:
        """Do it when what was asked before is done."""
        with self._lock:
            self._waiting_bytes += nbytes
        self._tasks.put((task, nbytes))

    def close(self) -> None:
        """Return when all is done; nothing more may be offered."""
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (taken := self._tasks.get()) is not None:
            task, nbytes = taken
            try:
                task()
            except Exception:
                logger.exception("the prompt cache could not write")
            del task, taken  # with the arrays that they hold
            with self._lock:
                self._waiting_bytes -= nbytes

"""What stands before the turns of prompts, kept: the next prompt of a conversation has the same."""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from models.families.prompt_tokens import Piece

Head = tuple[Piece, ...]

# With a coding agent's tools some 100 kB each. A prompt with boundaries needs up to ten.
_KEPT = 64


class KeptHeads:
    """By what they were made of, which must be writable as JSON. May be asked by several threads
    at once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Head] = OrderedDict()
        self._lock = Lock()

    def of(self, given: Sequence[Any], write: Callable[[], Sequence[Piece]]) -> Head:
        """What `write` makes of it; raises what that raises."""
        key = json.dumps(given)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        head = tuple(write())
        with self._lock:
            self._kept[key] = head
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return head

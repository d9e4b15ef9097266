"""All tokens of one run, as one array that grows."""

from collections.abc import Iterable

import numpy as np

from models.speculation.drafter import Ids

_LEAST_ROOM = 256  # tokens


class Text:
    """Those of its prompt, and those that it generates."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = np.fromiter(ids, np.uint32)
        self._length = len(self._ids)

    @property
    def ids(self) -> Ids:
        """A view: what is added later is written behind it, or elsewhere."""
        return self._ids[: self._length]

    def extend(self, ids: Iterable[int]) -> None:
        for token in ids:
            self.before(token)
            self._length += 1

    def before(self, token: int) -> Ids:
        """As `ids`, with the token that comes next, which is not theirs until it was added."""
        if self._length == len(self._ids):
            more = np.empty(max(_LEAST_ROOM, self._length), np.uint32)
            self._ids = np.concatenate([self._ids, more])
        self._ids[self._length] = token
        return self._ids[: self._length + 1]

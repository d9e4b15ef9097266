"""Drafts from the text itself: what followed when its last tokens stood there before.

Prompt lookup (Saxena, 2023: "Prompt Lookup Decoding"), with the longest match there is rather than
one of a fixed length, and without an index: a scan of 100,000 tokens takes less than a hundredth
of the shortest step that any model takes after so many.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# A longer match says no more about what comes.
_LONGEST_MATCH = 32
_LEAST_MATCH = 2


@dataclass(frozen=True, slots=True)
class Found:
    """The tokens that may come next, and how many before them stood there, too."""

    ids: tuple[int, ...]
    match: int


class PromptLookup:
    """Over all tokens of one run: those of its prompt, and those that it generates."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = np.fromiter(ids, np.uint32)
        self._length = len(self._ids)

    def __len__(self) -> int:
        return self._length

    def extend(self, ids: Iterable[int]) -> None:
        for token in ids:
            if self._length == len(self._ids):
                more = np.empty(max(256, self._length), np.uint32)
                self._ids = np.concatenate([self._ids, more])
            self._ids[self._length] = token
            self._length += 1

    def find(self, most: int) -> Found | None:
        """Up to `most` tokens after the latest of the longest matches; None if the last two tokens
        were nowhere before. What follows a match that reaches the end repeats itself."""
        ids = self._ids[: self._length]
        if self._length <= _LEAST_MATCH:
            return None
        places = np.flatnonzero(ids[:-1] == ids[-1])
        match = 1
        while match < _LONGEST_MATCH:
            longer = places[places >= match]
            longer = longer[ids[longer - match] == ids[-1 - match]]
            if not len(longer):
                break
            places, match = longer, match + 1
        if match < _LEAST_MATCH:
            return None
        follows = ids[places[-1] + 1 :]
        return Found(tuple(np.resize(follows, most).tolist()), match)

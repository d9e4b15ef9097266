"""Drafts from the text itself: what followed when its last tokens stood there before.

Prompt lookup (Saxena, 2023: "Prompt Lookup Decoding"), with the longest match there is rather than
one of a fixed length, and without an index: a scan of 100,000 tokens takes less than a hundredth
of the shortest step that any model takes after so many.
"""

import numpy as np

from models.speculation.drafter import Drafter, Ids, Offer

# A longer match says no more about what comes.
_LONGEST_MATCH = 32
_LEAST_MATCH = 2
_MOST_DRAFTS = 15

# How often a draft is right if those before it were, by the least length of the match that it
# comes from, so long as nothing was measured.
_CHANCES = ((16, 0.9), (6, 0.8), (3, 0.6), (_LEAST_MATCH, 0.4))


class PromptLookup(Drafter):
    """Offers what came after the latest of the longest matches, if the last two tokens at least
    were somewhere before. What follows a match that reaches the end repeats itself."""

    def __init__(self) -> None:
        self._place = 0  # where what was last offered begins

    def offer(self, tokens: Ids) -> Offer | None:
        if len(tokens) <= _LEAST_MATCH:
            return None
        places = np.flatnonzero(tokens[:-1] == tokens[-1])
        match = 1
        while match < _LONGEST_MATCH:
            longer = places[places >= match]
            longer = longer[tokens[longer - match] == tokens[-1 - match]]
            if not len(longer):
                break
            places, match = longer, match + 1
        if match < _LEAST_MATCH:
            return None
        self._place = int(places[-1]) + 1
        least, chance = next(each for each in _CHANCES if match >= each[0])
        return Offer(self, f"match of {least}", chance, _MOST_DRAFTS)

    def draft(self, tokens: Ids, width: int) -> Ids:
        return np.resize(tokens[self._place :], width)

"""Stop sequences found in text that arrives in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """Text that may be shown, and the stop sequence that ended it, if one did."""

    text: str
    matched: str | None = None


class StopSequences:
    """Passes text through up to the stop sequence that completes first.

    Only a suffix that could still become a stop sequence is held back. The result does not depend
    on how the text is cut: of several matches the one that ends earliest wins, of those that end
    together the longest. Comparison is by code point, without normalisation.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._searches = [_Search(each) for each in sorted(sequences, key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str) -> Passed:
        """To be called no more once it has returned a match."""
        if not self._searches:
            return Passed(text)
        whole = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            for search in self._searches:
                if search.completes(character):
                    return Passed(whole[: end - len(search.sequence)], search.sequence)
        shown = len(whole) - max(search.matched for search in self._searches)
        self._held = whole[shown:]
        return Passed(whole[:shown])

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Knuth, Morris and Pratt's search for one sequence, a character at a time.

    Its time does not depend on what the sequence and the text have in common, so no choice of
    stop sequences can hold up the service.
    """

    def __init__(self, sequence: str) -> None:
        self.sequence = sequence
        self.matched = 0  # how long a prefix of the sequence the text so far ends with
        # For each length of a matched prefix: the longest shorter one that it ends with.
        self._shorter = [0, 0]
        length = 0
        for character in sequence[1:]:
            length = self._extended(length, character)
            self._shorter.append(length)

    def completes(self, character: str) -> bool:
        """Whether the sequence ends with this, the next character of the text."""
        self.matched = self._extended(self.matched, character)
        return self.matched == len(self.sequence)

    def _extended(self, length: int, character: str) -> int:
        while length and self.sequence[length] != character:
            length = self._shorter[length]
        return length + 1 if self.sequence[length] == character else 0

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
        self._sequences = tuple(sequences)
        self._held = ""

    def feed(self, text: str) -> Passed:
        """To be called no more once it has returned a match."""
        if not self._sequences:
            return Passed(text)
        text = self._held + text
        matches = [
            (start + len(each), start, each)
            for each in self._sequences
            if (start := text.find(each)) >= 0
        ]
        if matches:
            _, start, matched = min(matches)
            return Passed(text[:start], matched)
        held = max(_overlap(text, each) for each in self._sequences)
        self._held = text[len(text) - held :]
        return Passed(text[: len(text) - held])

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of `sequence`."""
    for length in range(min(len(text), len(sequence) - 1), 0, -1):
        if text.endswith(sequence[:length]):
            return length
    return 0

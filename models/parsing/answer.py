"""One answer, from token ids to text: where it goes, and where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.parsing.stop_sequences import StopSequences
from models.parsing.token_text import TokenBytes, TokenText


@dataclass(frozen=True, slots=True)
class Parsed:
    """Text to show for the ids just fed; `stop_sequence` is set when the answer ends with them."""

    text: str
    stop_sequence: str | None = None


class AnswerParser:
    """Feed it every generated id, in order, until it reports a stop sequence; then flush it."""

    def __init__(self, token_bytes: TokenBytes, stop_sequences: Sequence[str]) -> None:
        self._text = TokenText(token_bytes)
        self._stops = StopSequences(stop_sequences)

    def feed(self, token: int) -> Parsed:
        return self._pass(self._text.feed(token))

    def flush(self) -> Parsed:
        """The engine has ended the answer: what was held back comes out."""
        last = self._pass(self._text.flush())
        if last.stop_sequence is not None:
            return last
        return Parsed(last.text + self._stops.flush())

    def _pass(self, text: str) -> Parsed:
        passed = self._stops.feed(text)
        return Parsed(passed.text, passed.matched)

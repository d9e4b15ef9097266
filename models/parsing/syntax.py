"""What a family says about its answers: which language they are written in."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from models.parsing.events import Event, TextDelta


class Syntax(ABC):
    """Reads one answer, as text and as markers, cut anywhere, and says what it is made of.

    Markers are tokens of their own, so that the same characters in the text are no marker.
    """

    thinks = False  # whether what was read last belongs to thinking, delimiters included

    @abstractmethod
    def text(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def marker(self, marker: str) -> Iterator[Event]: ...

    @abstractmethod
    def end(self, *, cut: bool) -> Iterator[Event]:
        """No more comes: because the model ended its answer, or because it was `cut`."""


class PlainText(Syntax):
    """Text and nothing else; markers are text like any other."""

    def text(self, text: str) -> Iterator[Event]:
        yield TextDelta(text)

    def marker(self, marker: str) -> Iterator[Event]:
        yield TextDelta(marker)

    def end(self, *, cut: bool) -> Iterator[Event]:
        yield from ()

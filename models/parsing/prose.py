"""Text and thinking on their way out of a parser."""

from collections.abc import Iterator

from models.parsing.events import Event, TextDelta, ThinkingDelta, ThinkingEnd


class Prose:
    """Makes blocks of text and of thinking, none of which is white space alone.

    White space between other blocks and text belongs to neither. If `leads_to_calls` is thinking,
    text is held until it is known whether a call follows it.
    """

    def __init__(self, *, leads_to_calls_thinks: bool = False) -> None:
        self._holds_text = leads_to_calls_thinks
        self._thinks = False
        self._held = ""  # the beginning of a block, which so far is white space
        self._begun = False  # the block
        self._is_first = True
        self._text: list[str] = []  # which may yet be thinking

    def text(self, text: str) -> Iterator[Event]:
        if self._thinks:
            yield from self.end()
        if piece := self._piece(text, keeps_space=self._is_first):
            if self._holds_text:
                self._text.append(piece)
            else:
                yield TextDelta(piece)

    def thinking(self, text: str) -> Iterator[Event]:
        if not self._thinks:
            yield from self.end()
            self._thinks = True
        if piece := self._piece(text, keeps_space=True):
            yield ThinkingDelta(piece)

    def end(self, *, call_follows: bool = False) -> Iterator[Event]:
        """The block ends, if there is one."""
        if self._text:
            text = "".join(self._text)
            self._text.clear()
            if call_follows:
                yield from (ThinkingDelta(text), ThinkingEnd())
            else:
                yield TextDelta(text)
        elif self._thinks and self._begun:
            yield ThinkingEnd()
        if self._begun or call_follows:
            self._is_first = False
        self._thinks = self._begun = False
        self._held = ""

    def _piece(self, text: str, *, keeps_space: bool) -> str:
        if self._begun:
            return text
        self._held += text
        if not self._held.strip():
            return ""
        self._begun = True
        piece, self._held = self._held, ""
        return piece if keeps_space else piece.lstrip()

"""Text and thinking on their way out of a parser."""

from collections.abc import Iterator

from models.parsing.events import Event, TextDelta, ThinkingDelta, ThinkingEnd


class Prose:
    """Makes blocks of text and of thinking, none of which is white space alone.

    White space between other blocks and text belongs to neither; where the answer `may_call`, that
    includes what leads to a call. If `leads_to_calls_thinks`, text is held until it is known
    whether a call follows it, and is thinking then.
    """

    def __init__(self, *, may_call: bool = False, leads_to_calls_thinks: bool = False) -> None:
        self._may_call = may_call
        self._holds_text = leads_to_calls_thinks
        self._thinks = False
        self._space: list[str] = []  # that the block will have if it goes on
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
        space = "".join(self._space) if self._begun and not call_follows else ""
        if self._text:
            text = "".join(self._text)
            self._text.clear()
            if call_follows:
                yield from (ThinkingDelta(text), ThinkingEnd())
            else:
                yield TextDelta(text + space)
        elif self._thinks and self._begun:
            yield ThinkingEnd()
        elif space:
            yield TextDelta(space)
        if self._begun or self._thinks or call_follows:
            self._is_first = False
        self._thinks = self._begun = False
        self._space.clear()

    def _piece(self, text: str, *, keeps_space: bool) -> str:
        holds = self._may_call and not self._thinks  # the white space at the end
        if self._begun and not (holds and (self._space or text[-1:].isspace())):
            return text
        shown = text.rstrip()
        if not shown:
            self._space.append(text)
            return ""
        rest = text[len(shown) :]
        is_whole = self._begun or keeps_space
        shown = "".join((*self._space, shown)) if is_whole else shown.lstrip()
        self._space = [rest] if rest and holds else []
        self._begun = True
        return shown if holds else shown + rest

"""One answer as it is generated: token ids in, text out, and how it ended."""

from collections.abc import Iterable

from models.engine.protocol import ids_of
from models.parsing.answer import AnswerParser
from models.parsing.events import Event, Stopped, TextDelta
from service.wire.responses import StopReason


class Answer:
    """The same whether its ids come from the engine now or from a record of earlier times."""

    def __init__(self, parser: AnswerParser, stop_ids: tuple[int, ...], max_tokens: int) -> None:
        self.ids = ids_of()
        self.stop_reason: StopReason | None = None
        self.stop_sequence: str | None = None
        self._parser = parser
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def take(self, ids: Iterable[int]) -> tuple[list[int], str]:
        """The ids that count, and the text that they let be shown. Those after the end of the
        answer, or after the one that completed a stop sequence, were decoded in vain."""
        taken: list[int] = []
        texts: list[str] = []
        for token in ids:
            if self.stop_reason is not None:
                break
            taken.append(token)
            if token in self._stop_ids:
                self.stop_reason = "end_turn"
                break
            texts.append(self._shown(self._parser.feed(token)))
            if self.stop_reason is None and len(self.ids) + len(taken) == self._max_tokens:
                self.stop_reason = "max_tokens"
        self.ids.extend(taken)
        return taken, "".join(texts)

    def end(self) -> str:
        """No more ids will come: the text that was held back until now."""
        if self.stop_sequence is not None:
            return ""
        return self._shown(self._parser.end(cut=self.stop_reason == "max_tokens"))

    def _shown(self, events: Iterable[Event]) -> str:
        texts: list[str] = []
        for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
            elif isinstance(event, Stopped):
                self.stop_reason, self.stop_sequence = "stop_sequence", event.sequence
        self._parts += texts
        return "".join(texts)

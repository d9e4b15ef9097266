"""One answer as it is generated: token ids in, pieces of content out, and how it ended."""

from collections.abc import Iterable, Iterator, Sequence

from models.conversation import ToolCall
from models.engine.protocol import ids_of
from models.parsing import events
from models.parsing.answer import AnswerParser
from service.errors import ApiError
from service.requests.answer_plan import AnswerPlan
from service.scheduling.blocks import Blocks, Sign, Summarise, SummaryBlock
from service.wire.responses import StopReason
from storage.answer_pieces import Piece

# The closing marker of a call and the model's own end, in the smallest tokens.
_MOST_AFTER_CALL = 32


class Answer:
    """What one round generates; the same whether its ids come from the engine now or from a record
    of earlier times.

    Calls of tools that the service runs are `unanswered` until it has; if the model wrote nothing
    else that somebody has to run, the message `goes_on` with another round.
    """

    def __init__(
        self,
        parser: AnswerParser,
        stop_ids: tuple[int, ...],
        max_tokens: int,
        *,
        plan: AnswerPlan,
        message_id: str,
        sign: Sign,
        summarise: Summarise | None = None,
        before: "Answer | None" = None,
        fills_context: bool = False,
    ) -> None:
        """With `summarise` it is a summary. `before` is what the same message said in the last
        round. If it `fills_context`, there is no room for more than `max_tokens`."""
        self.ids = ids_of()
        self.pieces: list[Piece] = []
        self.stop_reason: StopReason | None = None
        self.stop_sequence: str | None = None
        # Why there will be no answer, though the engine did its part.
        self.fault: ApiError | None = None
        # Whether it is over though the engine, which knows nothing of blocks, may go on.
        self.ended_early = False
        # Whether the model itself ended it, and all that it wrote counts.
        self.ended_itself = False
        self.goes_on = False
        self.results: list[Piece] = []  # of the calls that the service ran
        self.plan = plan
        self._parser = parser
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._parallel = plan.form.choice.parallel
        # Tokens that may still come after an only call. A guide lets nothing follow but the end.
        self._left = _MOST_AFTER_CALL if plan.form.guided else 0
        self._is_summary = summarise is not None
        self._full: StopReason = "model_context_window_exceeded" if fills_context else "max_tokens"
        if summarise:
            self._blocks = SummaryBlock(summarise)
        else:
            said = before._blocks if before else None
            self._blocks = Blocks(
                plan, message_id, sign, None if isinstance(said, SummaryBlock) else said
            )

    @property
    def is_over(self) -> bool:
        """Whether it needs the engine no more."""
        return self.stop_reason is not None or self.fault is not None or self.goes_on

    @property
    def is_complete(self) -> bool:
        """Whether the message is."""
        return self.is_over and not self.goes_on and not self.unanswered

    @property
    def unanswered(self) -> list[ToolCall]:
        if not self.is_over or self.fault is not None or self.results:
            return []
        return self._blocks.server_calls

    @property
    def thinking_tokens(self) -> int:
        """Those of its ids that are thinking, delimiters included."""
        return self._parser.thinking_tokens

    @property
    def _has_only_call(self) -> bool:
        """Whether it has the one call that it may have."""
        blocks = self._blocks
        return not self._parallel and (blocks.client_calls > 0 or bool(blocks.server_calls))

    def take(self, ids: Iterable[int]) -> tuple[list[int], list[Piece]]:
        """The ids that count, and the pieces that they let be shown. Those after the end of the
        answer, wherever that turns out to be, were decoded in vain."""
        taken: list[int] = []
        shown: list[Piece] = []
        for token in ids:
            if self.is_over:
                break
            taken.append(token)
            if token in self._stop_ids:
                shown += self._end("end_turn")
                continue
            shown += self._read(self._parser.feed(token))
            if self._has_only_call and not self.is_over:
                if self._left == 0:
                    shown += self._finish("tool_use")
                self._left -= 1
            self.ended_early = self.is_over
            if not self.is_over and len(self.ids) + len(taken) == self._max_tokens:
                shown += self._end("max_tokens")
        self.ids.extend(taken)
        self.pieces += shown
        return taken, shown

    def answer_calls(self, results: Sequence[Piece]) -> None:
        """What came of its `unanswered` calls."""
        self.results = [*results]
        self.pieces += results

    def end_for(self, reason: StopReason) -> None:
        """There can be no other round."""
        self.goes_on, self.stop_reason = False, reason

    def cut(self) -> list[Piece]:
        """The engine has no room for more; the pieces that this lets be shown."""
        shown = [] if self.is_over else self._end("max_tokens")
        self.pieces += shown
        return shown

    def _end(self, reason: StopReason) -> list[Piece]:
        shown = list(self._read(self._parser.end(cut=reason == "max_tokens")))
        if self.is_over:
            return shown
        self.ended_itself = reason == "end_turn" and not self._is_summary
        return [*shown, *self._finish(reason)]

    def _read(self, found: Iterable[events.Event]) -> Iterator[Piece]:
        for event in found:
            if self.is_over:
                return
            match event:
                case events.InvalidCall(name, why):
                    self.fault = ApiError.internal(
                        f"the model called {name} in a way that cannot be published: {why}; "
                        "ask again, or serve it with `--grammar on`"
                    )
                case events.Stopped(sequence):
                    yield from self._finish("stop_sequence", sequence)
                case _ if self._has_only_call:
                    yield from self._finish("tool_use")
                case _:
                    yield from self._blocks.take(event)

    def _finish(self, reason: StopReason, sequence: str | None = None) -> Iterator[Piece]:
        """However it ended: whoever gets a call has to run it, unless another was cut short."""
        yield from self._blocks.end()
        if self._blocks.in_call and reason != "max_tokens":
            self.fault = ApiError.internal(
                "the model ended its answer in the middle of a call; ask again"
            )
        elif self._blocks.client_calls and not self._blocks.in_call:
            self.stop_reason = "tool_use"
        elif self.plan.then:
            self.goes_on = True
        elif self._is_summary:  # one that was cut short still says the most important
            self.stop_reason = "compaction"
        elif self._blocks.server_calls and reason in ("end_turn", "tool_use"):
            self.goes_on = True
        elif reason == "max_tokens":
            self.stop_reason = self._full
        else:
            self.stop_reason, self.stop_sequence = reason, sequence

"""Follows a `GuideSpec` through one answer: which token may come next."""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec
from models.grammar.vocabulary import GuideError, Vocabulary, one_line
from models.parsing.code_spans import CodeSpans
from models.parsing.token_text import TokenText

Mask = NDArray[np.bool_]


class Guide:
    """Fed every token of an answer, it knows what it asks of the next one: that it is `forced`,
    that it is one that the `mask` allows, or nothing."""

    def __init__(self, spec: GuideSpec, vocabulary: Vocabulary, stop_ids: Collection[int]) -> None:
        """Raises GuideError for a grammar that cannot be compiled."""
        self._spec, self._vocabulary, self._stop_ids = spec, vocabulary, sorted(stop_ids)
        self._thought = 0  # tokens of thinking so far
        self._enter(0)

    def forced(self) -> int | None:
        """The next token, if there is no choice."""
        match self._state:
            case Forced(ids):
                return ids[self._place]
            case Free(close=close) if close and (self._place or not self._fits(close)):
                return close[self._place]
            case Ended(token):
                return self._stop_ids[0] if len(self._stop_ids) == 1 else token
            case _:
                return None

    @property
    def foresees(self) -> bool:
        """Whether it may know more than the next token."""
        return isinstance(self._state, Forced | Constrained) or self.forced() is not None

    def forced_after(self, token: int) -> tuple[int, ...]:
        """What comes after `token`, the next one, as far as that is plain without asking the model.
        In a grammar it is only the likeliest way to write what that asks for: the mask has the last
        word."""
        match self._state:
            case Forced(ids):
                return ids[self._place + 1 :]
            case Free(close=close) if self.forced() is not None:
                return close[self._place + 1 :]
            case Constrained():
                with self._after(token) as goes_on:
                    return tuple(self._matcher.compute_ff_tokens()) if goes_on else ()
            case _:
                return ()

    def allowed_after(self, token: int, ids: Sequence[int]) -> int:
        """How many of `ids`, from the first on, a grammar allows after `token`, the next one."""
        if not isinstance(self._state, Constrained):
            return len(ids)
        with self._after(token) as goes_on:
            if not goes_on:
                return 0
            # Weights may draft what only pads the vocabulary, which no matcher has heard of.
            known = list(takewhile(lambda id: id < self._vocabulary.size, ids))
            return self._matcher.validate_tokens(known)

    @contextmanager
    def _after(self, token: int) -> Generator[bool]:
        """The grammar after `token`, for a while; whether it goes on then."""
        consumed = self._matcher.try_consume_tokens([token])
        try:
            yield consumed == 1 and not self._matcher.is_stopped()
        finally:
            if consumed:
                self._matcher.rollback(consumed)

    def mask(self) -> Mask | None:
        """Which tokens of the vocabulary may come next; None if all may. Raises GuideError."""
        match self._state:
            case Constrained():
                return self._mask_of_grammar()
            case Ended():
                return self._only(self._stop_ids)
            case Free() as state if barred := self._barred(state):
                return ~self._only(barred)
            case _:
                return None

    @property
    def is_free(self) -> bool:
        """Whether the next token may be any."""
        return (
            isinstance(self._state, Free)
            and self.forced() is None
            and not self._barred(self._state)
        )

    def advance(self, token: int) -> None:
        """The answer goes on with that token. Raises GuideError for one that may not come."""
        thought = self._thinks
        match self._state:
            case Free() as state:
                self._advance_free(state, token)
            case Forced(ids, then):
                self._check(token == ids[self._place])
                self._place += 1
                if self._place == len(ids):
                    self._enter(then)
            case Constrained() as state:
                self._advance_grammar(state, token)
            case Ended():
                self._check(token in self._stop_ids)
        if thought or self._thinks:
            self._thought += 1

    def _enter(self, number: int) -> None:
        state = self._spec.states[number]
        while isinstance(state, Forced) and not state.ids:
            state = self._spec.states[state.then]
        self._state = state
        self._place = 0  # in what is forced
        if isinstance(state, Free) and state.text:
            self._text, self._code = TokenText(self._vocabulary.token_bytes), CodeSpans()
        if isinstance(state, Constrained):
            self._written: list[int] = []
            self._matcher: LLMatcher = self._vocabulary.matcher(state.grammar)

    def _advance_free(self, state: Free, token: int) -> None:
        closing = self.forced()
        if closing is not None:
            self._check(token == closing)
            self._place += 1
        then = state.exits.get(token)
        if then is not None and not (state.text and self._code.inside):
            self._enter(then)
        elif state.text:
            is_marker = then is not None
            text = self._vocabulary.written([token]) if is_marker else self._text.feed(token)
            self._code.feed(text)

    def _advance_grammar(self, state: Constrained, token: int) -> None:
        if token in self._stop_ids and self._may_stop(state):
            self._enter(state.then)
            return
        self._check(self._matcher.try_consume_tokens([token]) == 1)
        self._written.append(token)
        if self._matcher.is_stopped():
            if not self._matcher.is_accepting():
                raise GuideError(f"the grammar came to no end: {one_line(self._matcher)}")
            then = state.then
            if state.branches:
                then = state.branches.get(self._vocabulary.written(self._written), then)
            self._enter(then)

    def _mask_of_grammar(self) -> Mask:
        assert isinstance(self._state, Constrained)
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GuideError(f"the grammar is too complex: {one_line(self._matcher)}")
        mask = np.unpackbits(packed, count=self._vocabulary.size, bitorder="little").view(np.bool_)
        if self._may_stop(self._state):
            mask[self._stop_ids] = True
        return mask

    def _may_stop(self, state: Constrained) -> bool:
        return isinstance(self._spec.states[state.then], Ended) and self._matcher.is_accepting()

    def _barred(self, state: Free) -> list[int]:
        """Stop ids where the answer may not end, and what would open thinking that has no room."""
        barred = [] if state.may_end else [*self._stop_ids]
        if not state.close:
            spent = [token for token, number in state.exits.items() if self._is_spent(number)]
            barred += spent if spent and not (state.text and self._code.inside) else []
        return barred

    def _is_spent(self, number: int) -> bool:
        """Whether that state is thinking, for which there is no room even to begin."""
        state = self._spec.states[number]
        return isinstance(state, Free) and bool(state.close) and not self._fits(state.close)

    def _fits(self, close: Collection[int]) -> bool:
        """Whether there is room for one more token of thinking, and for its end."""
        budget = self._spec.thinking_budget
        return budget is None or self._thought + len(close) < budget

    def _only(self, ids: list[int]) -> Mask:
        mask = np.zeros(self._vocabulary.size, np.bool_)
        mask[ids] = True
        return mask

    @property
    def _thinks(self) -> bool:
        return isinstance(self._state, Free) and bool(self._state.close)

    def _check(self, may_come: bool) -> None:
        if not may_come:
            raise GuideError("the answer has a token that its grammar does not allow")

"""How an answer of Qwen's is guided."""

from collections.abc import Mapping

from models.conversation import AnswerForm
from models.families.chatml import END
from models.families.prompt_tokens import PromptTokens
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END, Dialect
from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec, State
from models.grammar.json_grammar import json_calls_grammar, output_value
from models.grammar.lark import checked, either, grammar, literal, token
from models.grammar.tagged_grammar import xml_calls_grammar

_FIRST, _THINKING, _THOUGHT, _ANSWER, _CALL, _CALLED, _END = range(7)


def qwen_guide(
    form: AnswerForm, opens: str, dialect: Dialect, tokens: PromptTokens
) -> GuideSpec | None:
    """None where nothing is asked of the answer. Raises GrammarError."""
    guide = _Guide(form, dialect, tokens)
    budget = form.thinking.budget_tokens if form.thinking.thinks else None
    if not guide.asks and budget is None and not (form.callable_tools and form.guided):
        return None
    states: dict[int, State] = {
        _FIRST: guide.thinking if opens == "thinking" else guide.answer(is_first=True),
        _THINKING: guide.thinking,
        # What stands between thinking and the answer, where that has no choice.
        _THOUGHT: Forced(tokens.plain("\n\n") if guide.asks else (), _ANSWER),
        _ANSWER: guide.answer(is_first=False),
        _CALL: guide.call,
        _CALLED: guide.called,
        _END: guide.end,
    }
    return GuideSpec(tuple(states[each] for each in sorted(states)), budget)


class _Guide:
    def __init__(self, form: AnswerForm, dialect: Dialect, tokens: PromptTokens) -> None:
        self._form, self._dialect, self._tokens = form, dialect, tokens
        self._ids = tokens.special
        self._schema = form.output_schema if form.guided else None
        self._calls = {CALL: _CALL} if form.callable_tools else {}
        thinking = {THINK: _THINKING} if dialect.thinks else {}
        self._text = Free(self._exits(self._calls | thinking), text=True)
        self.asks = form.must_call or self._schema is not None
        self.end = Ended(self._ids[END])

    @property
    def thinking(self) -> State:
        if not self._dialect.thinks:
            return self.end
        end = self._ids[THINK_END]
        close = (*self._tokens.plain("\n"), end)
        return Free({end: _THOUGHT}, close=close, may_end=not self.asks)

    def answer(self, *, is_first: bool) -> State:
        """What is asked for, or what one of the markers leads to."""
        leads = dict(self._calls)
        if is_first and self._form.thinking.thinks and self._dialect.thinks:
            leads[THINK] = _THINKING
        options = [token(self._ids[each]) for each in leads]
        if not self._form.must_call:
            if self._schema is None:
                return self._text
            options.append(output_value(self._schema))
        return Constrained(checked(grammar(either(options))), _END, leads)

    @property
    def call(self) -> State:
        if not self._calls:
            return self.end
        close = self._ids[CALL_END]
        if not self._form.guided:
            return Free({close: _CALLED})
        calls_grammar = json_calls_grammar if self._dialect.calls == "json" else xml_calls_grammar
        end = literal("\n")
        return Constrained(
            calls_grammar(self._form.callable_tools, end, f"{end} {token(close)}"), _CALLED
        )

    @property
    def called(self) -> State:
        """After a call the answer may end; no output is due before there are results."""
        if not self._form.choice.parallel:
            return self.end
        if self._schema is None:
            return self._text
        again = f"({literal(chr(10))}? {token(self._ids[CALL])})?"
        return Constrained(checked(grammar(again)), _END, {CALL: _CALL, f"\n{CALL}": _CALL})

    def _exits(self, leads: Mapping[str, int]) -> dict[int, int]:
        return {self._ids[each]: then for each, then in leads.items()}

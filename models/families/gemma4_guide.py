"""How an answer of Gemma 4 is guided."""

from collections.abc import Mapping

from models.conversation import AnswerForm
from models.families.gemma4_answer import CALL, CALL_END, CHANNEL, CHANNEL_END
from models.grammar.gemma_grammar import gemma_calls_grammar
from models.grammar.guide_spec import Constrained, Ended, Free, GuideSpec, State
from models.grammar.json_grammar import output_value
from models.grammar.lark import checked, either, grammar, token
from models.parsing.gemma_call import QUOTE

_FIRST, _THOUGHT, _ANSWER, _CALL, _AFTER_CALL, _END = range(6)


def gemma4_guide(form: AnswerForm, opens: str, ids: Mapping[str, int]) -> GuideSpec | None:
    """None where nothing is asked of the answer. Raises GrammarError."""
    budget = form.thinking.budget_tokens
    asks = form.must_call or form.output_schema is not None
    if not asks and budget is None and not (form.callable_tools and form.guided):
        return None
    thought = {CHANNEL: _THOUGHT}
    call: State = Ended()
    calls = dict[str, int]()
    if form.callable_tools:
        calls = {CALL: _CALL}
        call = Free({ids[CALL_END]: _AFTER_CALL})
    if form.callable_tools and form.guided:
        close = token(ids[CALL_END])
        call = Constrained(
            gemma_calls_grammar(form.callable_tools, ids[QUOTE], suffix=close), _AFTER_CALL
        )
    thinking = Free(
        {ids[CHANNEL_END]: _ANSWER},
        close=(ids[CHANNEL_END],),
        may_end=not asks,
    )
    text = Free({ids[each]: then for each, then in (thought | calls).items()}, text=True)

    def answer(leads: Mapping[str, int], *, must_call: bool) -> State:
        """What is asked for, or what one of the markers leads to."""
        options = [token(ids[each]) for each in leads]
        if form.output_schema is not None and not must_call:
            options.append(output_value(form.output_schema))
        elif not must_call:
            return text
        return Constrained(checked(grammar(either(options))), _END, leads)

    first = answer(calls | thought if form.thinking.thinks else calls, must_call=form.must_call)
    states: dict[int, State] = {
        _FIRST: thinking if opens == "thought" else first,
        _THOUGHT: thinking,
        _ANSWER: answer(calls, must_call=form.must_call),
        _CALL: call,
        _AFTER_CALL: answer(calls, must_call=False) if form.choice.parallel else Ended(),
        _END: Ended(),
    }
    return GuideSpec(tuple(states[each] for each in sorted(states)), budget)

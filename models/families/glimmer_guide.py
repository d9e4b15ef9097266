"""How an answer of Muse Glimmer is guided."""

from collections.abc import Mapping, Sequence

from models.conversation import AnswerForm
from models.families.glimmer_answer import MESSAGE, MESSAGE_END, START, TURN_END
from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec, State
from models.grammar.json_grammar import output_grammar
from models.grammar.lark import checked, either, grammar, literal, token
from models.grammar.size import check_sizes
from models.grammar.tagged_grammar import atem_calls_grammar

_FIRST, _THOUGHT, _TEXT, _AFTER_CALL, _END = range(5)
_AFTER_THOUGHT, _STARTED_AFTER_THOUGHT, _HEADER_AFTER_THOUGHT = range(5, 8)
_LATER, _STARTED_LATER, _HEADER_LATER = range(8, 11)
_CALLS = 11  # and one for each tool


def glimmer_guide(
    form: AnswerForm, opens: str, ids: Mapping[str, int], assistant: Sequence[int]
) -> GuideSpec | None:
    """None where nothing is asked of the answer. `assistant` is that word, in tokens.

    Raises GrammarError.
    """
    budget = form.thinking.budget_tokens
    if not form.callable_tools and form.output_schema is None and budget is None:
        return None
    if form.guided:
        check_sizes(form.callable_tools)
    # A message that starts ends the one before it, as its own end does.
    start, message_end = ids[START], ids[MESSAGE_END]
    to_later = {message_end: _LATER, start: _STARTED_LATER}
    tools = {each.name: _CALLS + place for place, each in enumerate(form.callable_tools)}
    user = {"user": _TEXT}
    itself = {"self": _THOUGHT} if form.thinking.thinks else {}

    def header(recipients: Mapping[str, int]) -> State:
        """That of a message to one of them, after the word `assistant`."""
        headers = (f"{literal(f' to={each}')} {token(ids[MESSAGE])}" for each in recipients)
        branches = {f" to={each}{MESSAGE}": state for each, state in recipients.items()}
        return Constrained(checked(grammar(either(headers))), _END, branches)

    text: State = Free(to_later)
    if form.output_schema is not None:
        text = Constrained(output_grammar(form.output_schema), _END)
    asked = tools if form.must_call else user | tools
    # Where thinking is limited, or a call is to come, it comes once and first.
    again = {} if form.must_call or budget is not None else itself
    another = Constrained(grammar(f"{token(message_end)}?"), _END, {MESSAGE_END: _LATER})
    states: dict[int, State] = {
        _FIRST: text if opens == "text" else header(itself | asked),
        _THOUGHT: Free(
            {message_end: _AFTER_THOUGHT, start: _STARTED_AFTER_THOUGHT},
            close=(message_end,),
            may_end=not form.must_call and form.output_schema is None,
        ),
        _TEXT: text,
        _END: Ended(ids[TURN_END]),
        _AFTER_THOUGHT: Forced((start,), _STARTED_AFTER_THOUGHT),
        _STARTED_AFTER_THOUGHT: Forced(tuple(assistant), _HEADER_AFTER_THOUGHT),
        _HEADER_AFTER_THOUGHT: header(again | asked),
        _AFTER_CALL: another if form.choice.parallel else Ended(ids[TURN_END]),
        _LATER: Forced((start,), _STARTED_LATER),
        _STARTED_LATER: Forced(tuple(assistant), _HEADER_LATER),
        _HEADER_LATER: header(again | user | tools),
    }
    for place, tool in enumerate(form.callable_tools):
        if not form.guided:
            states[_CALLS + place] = Free(to_later)
            continue
        calls = atem_calls_grammar(
            [tool],
            literal("<atem:function_calls>\n"),
            literal("\n</atem:function_calls>"),
        )
        states[_CALLS + place] = Constrained(calls, _AFTER_CALL)
    return GuideSpec(tuple(states[each] for each in sorted(states)), budget)

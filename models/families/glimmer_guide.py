"""How an answer of Muse Glimmer is guided."""

from collections.abc import Mapping, Sequence

from models.conversation import AnswerForm
from models.families.glimmer_answer import MESSAGE, MESSAGE_END, START
from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec, State
from models.grammar.json_grammar import output_grammar
from models.grammar.lark import checked, either, grammar, literal, token
from models.grammar.tagged_grammar import atem_calls_grammar

_FIRST, _THOUGHT, _TEXT, _AFTER_CALL, _END = range(5)
_AFTER_THOUGHT, _HEADER_AFTER_THOUGHT, _LATER, _HEADER_LATER = range(5, 9)
_CALLS = 9  # and one for each tool


def glimmer_guide(
    form: AnswerForm, opens: str, ids: Mapping[str, int], assistant: Sequence[int]
) -> GuideSpec | None:
    """None where nothing is asked of the answer. `assistant` is that word, in tokens.

    Raises GrammarError.
    """
    budget = form.thinking.budget_tokens
    if not form.callable_tools and form.output_schema is None and budget is None:
        return None
    message_end = ids[MESSAGE_END]
    tools = {each.name: _CALLS + place for place, each in enumerate(form.callable_tools)}
    user = {"user": _TEXT}
    itself = {"self": _THOUGHT} if form.thinking.thinks else {}

    def header(recipients: Mapping[str, int]) -> State:
        """That of a message to one of them, after the word `assistant`."""
        headers = (f"{literal(f' to={each}')} {token(ids[MESSAGE])}" for each in recipients)
        branches = {f" to={each}{MESSAGE}": state for each, state in recipients.items()}
        return Constrained(checked(grammar(either(headers))), _END, branches)

    def next_message(header: int) -> State:
        return Forced((ids[START], *assistant), header)

    text: State = Free({message_end: _LATER})
    if form.output_schema is not None:
        text = Constrained(output_grammar(form.output_schema), _END)
    asked = tools if form.must_call else user | tools
    # Where thinking is limited, or a call is to come, it comes once and first.
    again = {} if form.must_call or budget is not None else itself
    another = Constrained(grammar(f"{token(message_end)}?"), _END, {MESSAGE_END: _LATER})
    states: dict[int, State] = {
        _FIRST: text if opens == "text" else header(itself | asked),
        _THOUGHT: Free(
            {message_end: _AFTER_THOUGHT},
            close=(message_end,),
            may_end=not form.must_call and form.output_schema is None,
        ),
        _TEXT: text,
        _END: Ended(),
        _AFTER_THOUGHT: next_message(_HEADER_AFTER_THOUGHT),
        _HEADER_AFTER_THOUGHT: header(again | asked),
        _AFTER_CALL: another if form.choice.parallel else Ended(),
        _LATER: next_message(_HEADER_LATER),
        _HEADER_LATER: header(again | user | tools),
    }
    for place, tool in enumerate(form.callable_tools):
        if not form.guided:
            states[_CALLS + place] = Free({message_end: _LATER})
            continue
        calls = atem_calls_grammar(
            [tool],
            literal("<atem:function_calls>\n"),
            literal("\n</atem:function_calls>"),
        )
        states[_CALLS + place] = Constrained(calls, _AFTER_CALL)
    return GuideSpec(tuple(states[each] for each in sorted(states)), budget)

"""What a message goes on with when the service has run what the model called."""

from dataclasses import replace

from models.conversation import AnswerForm, Conversation, Turn
from models.families.family import Family
from service.guiding import Guides
from service.requests.found_tools import definitions_of
from service.requests.history import History
from service.requests.served import Served
from service.scheduling.rounds import NextRound, Round, form_after
from service.tool_search.results import found_in
from service.wire.responses import StopReason
from storage.answer_pieces import content_of

_QUESTION = Turn.of("user", "?")


class NextRounds:
    """Needs nothing of a conversation but its last round, so that a record of that is enough."""

    def __init__(self, family: Family, served: Served, context_tokens: int) -> None:
        self._family = family
        self._served = served
        self._guides = Guides(family)
        self._context_tokens = context_tokens

    def after(self, last: Round) -> NextRound | StopReason:
        """The round that follows, or why there can be none. To be called off the event loop.

        Raises ApiError for a tool that was found, is strict and beyond any grammar.
        """
        run, answer = last.run, last.answer
        left = run.max_tokens - len(answer.ids)
        if not left:
            return "max_tokens"
        found = found_in(answer.results)
        form = form_after(answer.plan, found)
        written, answer_at, opens = self._results(last, form)
        # The token that ended the turn is the family's own to write.
        kept = len(run.prompt) + len(answer.ids) - (answer.ids[-1] in run.stop_ids)
        room = self._context_tokens - kept - len(written)
        if room <= 0:
            return "model_context_window_exceeded"
        guide = self._guides.of(form, opens, {each.name: each.name for each in form.tools})
        return NextRound(
            kept,
            written,
            min(left, room),
            opens,
            kept + answer_at,
            guide.spec.as_json() if guide.spec else None,
            guide.form.guided,
            found,
        )

    def _results(self, last: Round, form: AnswerForm) -> tuple[tuple[int, ...], int, str]:
        """What is written after the model's tokens: the end of its turn, the results, and the
        beginning of its next one; where in that this is, and where it leaves off.

        The same after any turn with calls at its end, so that it is taken from a small one.
        """
        plan = last.answer.plan
        said = History.answered(
            content_of(last.answer.pieces), self._served, definitions_of(plan.findable)
        )
        calls, results = said[0], said[-1]
        # Whether there are tools makes a difference here, but not which.
        form = replace(form, tools=form.tools[:1])
        asked = self._family.render(Conversation((_QUESTION,), form))
        place = asked.answer_from
        assert place is not None, "a family whose models call tools tells where answers begin"
        turn = (*asked.ids[place:], last.run.stop_ids[0])
        small = Conversation((_QUESTION, replace(calls, tokens=turn), results), form)
        written = self._family.render(small)
        start = len(asked.ids)
        assert written.ids[:start] == asked.ids
        assert written.answer_from is not None
        return tuple(written.ids[start:]), written.answer_from - start, written.opens

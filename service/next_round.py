"""What a message goes on with: what the service ran for the model, or a summary it has made."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from models.conversation import AnswerForm, Conversation, Turn
from models.families.family import Family
from service.guiding import Guides
from service.requests.answer_plan import AfterSummary
from service.requests.found_tools import definitions_of
from service.requests.history import History
from service.requests.served import Served
from service.requests.summaries import as_told, summary_in
from service.scheduling.rounds import NextRound, Round, form_after
from service.shared_tokens import shared_tokens
from service.tool_search.results import found_in
from service.wire.responses import StopReason
from storage.answer_pieces import content_of

_QUESTION = Turn.of("user", "?")


class NextRounds:
    """Needs nothing of a conversation but its last round, so that a record of that is enough."""

    def __init__(
        self,
        family: Family,
        guides: Guides,
        served: Served,
        context_tokens: int,
        digest: Callable[[Sequence[Turn]], bytes],
    ) -> None:
        """`digest` is that of all that was said, by which answers are remembered."""
        self._family = family
        self._guides = guides
        self._served = served
        self._context_tokens = context_tokens
        self._digest = digest

    def after(self, last: Round) -> NextRound | StopReason:
        """The round that follows, or why there can be none. To be called off the event loop.

        Raises ApiError for a tool that was found, is strict and beyond any grammar.
        """
        run, answer = last.run, last.answer
        if answer.plan.then is not None:
            return self._after_summary(last, answer.plan.then)
        left = run.max_tokens - len(answer.ids)
        if not left:
            return "max_tokens"
        found = found_in(answer.results)
        form = form_after(answer.plan, found)
        written, answer_at, opens = self._results(last, form)
        # The token that ended the turn is the family's own to write.
        kept = len(run.prompt) + len(answer.ids) - (answer.ids[-1] in run.stop_ids)
        asked = answer.plan.asked
        begun = NextRound(kept, written, left, opens, kept + answer_at, found=found, asked=asked)
        return self._guided(begun, form)

    def _after_summary(self, last: Round, then: AfterSummary) -> NextRound | StopReason:
        """The answer to what is left of the conversation, as a client asks for it that sends the
        summary back; where there is none, to the conversation."""
        plan = then.plan
        summary = summary_in(last.answer.pieces)
        if summary is None:
            kept, ids, opens, answer_from = then.kept, then.ids, plan.opens, plan.answer_from
            asked = last.answer.plan.asked
        else:
            # Where tools were found there is nothing left to show them.
            tools = tuple(replace(each, is_found=False) for each in plan.form.tools)
            turns = (Turn.of("system", then.system), Turn.of("user", as_told(summary)))
            turns = turns if then.system else turns[1:]
            form = replace(plan.form, tools=tools)
            rendered = self._family.render(Conversation(turns, form, then.effort))
            kept = shared_tokens(last.run.prompt + last.answer.ids, rendered.ids)
            ids = tuple(rendered.ids[kept:])
            opens, answer_from = rendered.opens, rendered.answer_from
            asked = self._digest(turns).hex()
        begun = NextRound(kept, ids, then.max_tokens, opens, answer_from, asked=asked)
        return self._guided(begun, plan.form)

    def _guided(self, begun: NextRound, form: AnswerForm) -> NextRound | StopReason:
        """As far as it has room, and with the guide of its answer."""
        room = self._context_tokens - begun.prompt_tokens
        if room <= 0:
            return "model_context_window_exceeded"
        guide = self._guides.of(form, begun.opens)
        return replace(
            begun,
            max_tokens=min(begun.max_tokens, room),
            guide=guide.spec.as_json() if guide.spec else None,
            guided=guide.form.guided,
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

"""The rounds of a job: how often it has the model's turn before its answer is complete."""

from dataclasses import dataclass, replace
from typing import Any, Self

from models.conversation import AnswerForm, ToolChoice
from models.engine.protocol import Run, ids_of
from service.requests.answer_plan import AnswerPlan
from service.scheduling.answer import Answer
from service.wire.responses import Iteration, PromptUsage


@dataclass(slots=True)
class Round:
    """One run on the engine, what came of it, and what was told of its prompt, once that is
    known."""

    run: Run
    answer: Answer
    told: PromptUsage | None = None

    @property
    def usage(self) -> Iteration:
        """All of its prompt is input as long as nothing else is known."""
        prompt = self.told or PromptUsage(len(self.run.prompt))
        return Iteration(prompt, len(self.answer.ids), self.answer.thinking_tokens)


@dataclass(frozen=True, slots=True)
class NextRound:
    """What another round needs beside the one before it; a record keeps it as its event `round`.

    Its prompt is the first `kept` tokens of the last one and the answer to that, and then `ids`.
    The tools that were `found` can be called from now on. All else is as in the plan of an answer.
    """

    kept: int
    ids: tuple[int, ...]
    max_tokens: int
    opens: str
    answer_from: int | None
    guide: dict[str, Any] | None = None
    guided: bool = True
    found: tuple[str, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return self.kept + len(self.ids)

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "ids": list(self.ids),
            "max_tokens": self.max_tokens,
            "opens": self.opens,
            "answer_from": self.answer_from,
            "guide": self.guide,
            "guided": self.guided,
            "found": list(self.found),
        }

    @classmethod
    def recalled(cls, event: dict[str, Any]) -> Self:
        """Raises LookupError for what is none."""
        return cls(
            event["kept"],
            tuple(event["ids"]),
            event["max_tokens"],
            event["opens"],
            event["answer_from"],
            event["guide"],
            event["guided"],
            tuple(event["found"]),
        )

    def run_after(self, last: Round) -> Run:
        """Draws depend on seed and place alone: with the same seed they would be those of the
        last round."""
        said = last.run.prompt + last.answer.ids
        return replace(
            last.run,
            prompt=said[: self.kept] + ids_of(self.ids),
            max_tokens=self.max_tokens,
            seed=(last.run.seed + 1) % (1 << 63),
            guide=self.guide,
            answer_from=self.answer_from,
        )

    def plan_after(self, last: AnswerPlan) -> AnswerPlan:
        form = replace(form_after(last, self.found), guided=self.guided)
        return replace(last, form=form, opens=self.opens, answer_from=self.answer_from)


def form_after(last: AnswerPlan, found: tuple[str, ...]) -> AnswerForm:
    """That of an answer which goes on with more tools. A call that was asked for has been made."""
    form = last.form
    known = {each.name for each in form.tools}
    new = tuple(each for each in last.findable if each.name in found and each.name not in known)
    choice = form.choice
    if form.must_call:
        choice = ToolChoice(parallel=choice.parallel)
    return replace(form, tools=(*form.tools, *new), choice=choice)

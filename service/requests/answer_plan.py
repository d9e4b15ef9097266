"""How an answer is to be read and shown, decided when its prompt is prepared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from models.conversation import AnswerForm, ThinkingMode, Tool, ToolChoice
from service.requests.summaries import SummaryPlan
from service.wire.responses import AppliedEdit

Display = Literal["summarized", "omitted"]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """`opens` is where the prompt left off. With `display` omitted the client gets no thinking but
    in its signature. `unguided` are the paths of tools that no grammar could be made of.

    The turn of the answer begins at `answer_from` in its prompt, where the family says so, and
    `asked` is the digest of the conversation before it, in hex. `edits` are those of the prompt, of
    which the answer tells where the request asked for any. With a `summary` it is one, as the one
    block that it then has. `findable` are tools that the model is not shown but may search.
    """

    form: AnswerForm
    opens: str = "text"
    display: Display = "summarized"
    unguided: tuple[str, ...] = ()
    answer_from: int | None = None
    asked: str = ""
    edits: tuple[AppliedEdit, ...] | None = None
    summary: SummaryPlan | None = None
    findable: tuple[Tool, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What `prompt.json` keeps of it, beside the stop sequences."""
        form = self.form
        return {
            "form": {
                "tools": _as_json(form.tools),
                "choice": {
                    "kind": form.choice.kind,
                    "name": form.choice.name,
                    "parallel": form.choice.parallel,
                },
                "thinking": {
                    "kind": form.thinking.kind,
                    "budget_tokens": form.thinking.budget_tokens,
                },
                "output_schema": form.output_schema,
                "guided": form.guided,
            },
            "opens": self.opens,
            "display": self.display,
            "unguided": self.unguided,
            "answer_from": self.answer_from,
            "asked": self.asked,
            "edits": None if self.edits is None else [each.as_json() for each in self.edits],
            "summary": self.summary.as_json() if self.summary else None,
            "findable": _as_json(self.findable),
        }

    @classmethod
    def recalled(cls, recorded: Mapping[str, Any]) -> Self:
        """That of a `prompt.json`; in those of earlier versions answers are plain text.

        Raises LookupError or TypeError for what has not the shape of one.
        """
        stops = tuple(recorded["stop_sequences"])
        form, edits = recorded.get("form"), recorded.get("edits")
        summary = recorded.get("summary")
        if form is None:
            return cls(AnswerForm(stop_sequences=stops))
        return cls(
            AnswerForm(
                tools=tuple(Tool(**each) for each in form["tools"]),
                choice=ToolChoice(**form["choice"]),
                thinking=ThinkingMode(**form["thinking"]),
                output_schema=form["output_schema"],
                stop_sequences=stops,
                guided=form["guided"],
            ),
            recorded["opens"],
            recorded["display"],
            tuple(recorded["unguided"]),
            recorded.get("answer_from"),
            recorded.get("asked", ""),
            None if edits is None else tuple(AppliedEdit.recalled(each) for each in edits),
            SummaryPlan.recalled(summary) if summary else None,
            tuple(Tool(**each) for each in recorded.get("findable", ())),
        )


def _as_json(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "description": each.description,
            "schema": each.schema,
            "strict": each.strict,
            "is_found": each.is_found,
            "on_server": each.on_server,
        }
        for each in tools
    ]

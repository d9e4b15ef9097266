"""What no grammar can be made of falls back where it may, and is refused where it must not."""

from typing import Any

import pytest

from models.conversation import AnswerForm, Conversation, Tool, ToolChoice
from models.families.family import Family, PreparedPrompt
from models.grammar.guide_spec import Constrained, GuideSpec
from models.grammar.lark import GrammarError
from models.parsing.answer import AnswerParser
from service.errors import ApiError
from service.guiding import Guides

GOOD = {"type": "object", "properties": {}}
PATHS = {"a": "tools.0", "b": "tools.2"}


class Guiding(Family):
    """Can make a grammar of anything but `hard` schemas, and of so many keys of schemas."""

    name = "guiding"
    stop_ids = frozenset({0})

    def __init__(self) -> None:
        self.made = 0

    def render(self, conversation: Conversation) -> PreparedPrompt:
        raise NotImplementedError

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        raise NotImplementedError

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        self.made += 1
        if form.output_schema and "hard" in form.output_schema:
            raise GrammarError("is too hard")
        for each in form.callable_tools:
            if "hard" in each.schema:
                raise GrammarError("is too hard", each.name)
        if sum(len(each.schema) for each in form.tools) > 4:
            raise GrammarError("is too large")
        written = ",".join(f"{each.name}:{sorted(each.schema)}" for each in form.callable_tools)
        return GuideSpec((Constrained(written, 0),)) if form.guided else None


def tool(name: str, schema: dict[str, Any] = GOOD, *, strict: bool = False) -> Tool:
    return Tool(name, "", schema, strict)


def grammar_of(spec: GuideSpec | None) -> str:
    assert spec is not None
    (state,) = spec.states
    assert isinstance(state, Constrained)
    return state.grammar


def refusal(form: AnswerForm) -> str:
    with pytest.raises(ApiError) as caught:
        Guides(Guiding()).of(form, "text", {**PATHS, "c": "tools.3", "d": "d", "e": "e"})
    assert caught.value.status == 400
    return caught.value.message


def test_all_is_guided_where_it_can_be() -> None:
    form = AnswerForm((tool("a"), tool("b", strict=True)))
    made = Guides(Guiding()).of(form, "text", PATHS)
    assert (made.form, made.unguided) == (form, ())
    assert grammar_of(made.spec) == "a:['properties', 'type'],b:['properties', 'type']"


@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("any"), ToolChoice("tool", "b")])
def test_a_tool_that_cannot_be_guided_takes_any_object_and_is_checked_at_its_end(
    choice: ToolChoice,
) -> None:
    form = AnswerForm((tool("a", strict=True), tool("b", {"type": "object", "hard": 1})), choice)
    made = Guides(Guiding()).of(form, "text", PATHS)
    assert not made.form.guided
    assert made.form.tools == form.tools
    assert made.unguided == ("tools.2",)
    assert grammar_of(made.spec).endswith("b:['type']")


def test_a_strict_tool_that_cannot_be_guided_is_refused_by_name() -> None:
    form = AnswerForm((tool("a"), tool("b", {"hard": 1}, strict=True)))
    assert refusal(form) == (
        "tools.2.strict: its schema is too hard; simplify it or leave strict out"
    )


def test_an_output_is_not_blamed_for_tools_that_are_too_large_together() -> None:
    form = AnswerForm((tool("a"), tool("b"), tool("c")), output_schema={})
    made = Guides(Guiding()).of(form, "text", {**PATHS, "c": "tools.3"})
    assert made.unguided == ("tools.0", "tools.2", "tools.3")


def test_an_output_that_cannot_be_guided_is_refused() -> None:
    assert refusal(AnswerForm(output_schema={"hard": 1})) == (
        "output_config.format.schema: it is too hard"
    )


def test_tools_that_are_too_large_together_take_any_object() -> None:
    form = AnswerForm((tool("a"), tool("b"), tool("c")))
    made = Guides(Guiding()).of(form, "text", {**PATHS, "c": "tools.3"})
    assert made.unguided == ("tools.0", "tools.2", "tools.3")
    assert grammar_of(made.spec) == "a:['type'],b:['type'],c:['type']"


def test_tools_that_are_too_large_together_are_refused_where_that_is_no_choice() -> None:
    strict = AnswerForm((tool("a"), tool("b"), tool("c", strict=True)))
    assert refusal(strict) == (
        "tools.3.strict: its schema with all others is too large; simplify it or leave strict out"
    )
    many = AnswerForm(tuple(tool(name) for name in "abcde"))
    assert refusal(many) == "tools: what they accept is too large; send fewer"


def test_the_guide_of_the_same_tools_is_made_once() -> None:
    family = Guiding()
    guides = Guides(family)
    forms = [AnswerForm((tool("a"),), stop_sequences=(stop,)) for stop in "xyz"]
    made = [guides.of(form, "text", PATHS) for form in forms]
    assert family.made == 1
    assert [each.form for each in made] == forms
    assert len({grammar_of(each.spec) for each in made}) == 1
    guides.of(forms[0], "text", {"a": "tools.7"})
    assert family.made == 1
    guides.of(AnswerForm((tool("b"),)), "text", PATHS)
    guides.of(forms[0], "thinking", PATHS)
    guides.of(AnswerForm((tool("a"),), ToolChoice("any")), "text", PATHS)
    assert family.made == 4
    hard = AnswerForm((tool("a", {"hard": 1}),), stop_sequences=("x",))
    assert not guides.of(hard, "text", PATHS).form.guided
    assert guides.of(hard, "text", PATHS).form.stop_sequences == ("x",)

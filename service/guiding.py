"""How the engine is to guide an answer, and what of it no grammar could be made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from models.conversation import AnswerForm, Tool
from models.families.family import Family
from models.grammar.guide_spec import GuideSpec
from models.grammar.lark import GrammarError
from service.errors import ApiError
from service.requests.answer_plan import AnswerPlan
from storage.json_text import to_json

_KEPT = 16


@dataclass(frozen=True, slots=True)
class Guided:
    """`form` is how the answer is read: not guided where it has `unguided` tools, whose arguments
    the guide lets be any object, so that calls must be looked at before they are published."""

    spec: GuideSpec | None
    form: AnswerForm
    unguided: tuple[str, ...] = ()


class Guides:
    """The guides of one family's answers. Those made last are kept: a conversation goes on with
    the same tools, and the grammars of many take a while."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._made = lru_cache(maxsize=_KEPT)(self._make)

    def of(self, form: AnswerForm, opens: str, paths: Mapping[str, str] | None = None) -> Guided:
        """Its `unguided` are the paths of tools in the request; their names where it has none of
        them. Safe to be called by several threads at once.

        Raises ApiError 400 for a schema that is strict or of the output, and beyond any grammar.
        """
        path_of = paths or {each.name: each.name for each in form.tools}
        try:
            made = self._made(_Asked(form, opens))
        except _TooStrict as error:
            raise ApiError.invalid(
                f"{path_of[error.tool]}.strict: its schema {error}; simplify it or leave strict out"
            ) from error
        form = replace(form, guided=made.form.guided)
        return Guided(made.spec, form, tuple(path_of[each] for each in made.unguided))

    def _make(self, asked: "_Asked") -> Guided:
        return _guided(self._family, asked.form, asked.opens)


class _Asked:
    """As a key, what a guide depends on: the stop sequences are none of it."""

    def __init__(self, form: AnswerForm, opens: str) -> None:
        self.form, self.opens = form, opens
        self._digest = blake2b(to_json(AnswerPlan(form, opens).as_json())).digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and other._digest == self._digest


class _TooStrict(Exception):
    """No grammar can be made of a tool that must have one. The text goes on after "its schema"."""

    def __init__(self, tool: str, why: str) -> None:
        super().__init__(why)
        self.tool = tool


def _guided(family: Family, form: AnswerForm, opens: str) -> Guided:
    """With the names of unguided tools. Raises _TooStrict, and ApiError for what is no tool's."""
    try:
        return Guided(family.guide(form, opens), form)
    except GrammarError as error:
        is_of_one = error.tool is not None
    try:
        family.guide(replace(form, tools=()), opens)
    except GrammarError as error:
        raise ApiError.invalid(f"output_config.format.schema: it {error}") from error
    tools = form.tools
    if is_of_one:
        tools = tuple(_within_grammar(family, form, opens, each) for each in tools)
    try:
        return _in_part(family, form, opens, tools)
    except GrammarError as error:  # each for itself is well, but there are too many
        strict = next((each for each in form.tools if each.strict), None)
        if strict:
            raise _TooStrict(strict.name, f"with all others {error}") from error
    try:
        return _in_part(family, form, opens, tuple(map(_of_anything, tools)))
    except GrammarError as error:
        raise ApiError.invalid(f"tools: what they accept {error}; send fewer") from error


def _in_part(family: Family, form: AnswerForm, opens: str, tools: tuple[Tool, ...]) -> Guided:
    """Guided by other tools in the stead of some of the form's. Raises GrammarError."""
    unguided = tuple(
        each.name for each, its in zip(form.tools, tools, strict=True) if each is not its
    )
    return Guided(
        family.guide(replace(form, tools=tools), opens), replace(form, guided=False), unguided
    )


def _within_grammar(family: Family, form: AnswerForm, opens: str, tool: Tool) -> Tool:
    """The tool, or one that accepts anything in its stead."""
    try:
        family.guide(AnswerForm((tool,), thinking=form.thinking), opens)
    except GrammarError as error:
        if tool.strict:
            raise _TooStrict(tool.name, str(error)) from error
        return _of_anything(tool)
    return tool


def _of_anything(tool: Tool) -> Tool:
    return replace(tool, schema={"type": "object"})

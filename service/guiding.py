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

    def of(self, form: AnswerForm, opens: str, paths: Mapping[str, str]) -> Guided:
        """As `guided`. Safe to be called by several threads at once."""
        made = self._made(_Asked(form, opens, paths))
        return replace(made, form=replace(form, guided=made.form.guided))

    def _make(self, asked: "_Asked") -> Guided:
        return guided(self._family, asked.form, asked.opens, asked.paths)


class _Asked:
    """As a key, what a guide depends on: the stop sequences are none of it."""

    def __init__(self, form: AnswerForm, opens: str, paths: Mapping[str, str]) -> None:
        self.form, self.opens, self.paths = form, opens, paths
        parts = {**AnswerPlan(form, opens).as_json(), "paths": dict(paths)}
        self._digest = blake2b(to_json(parts)).digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and other._digest == self._digest


def guided(family: Family, form: AnswerForm, opens: str, paths: Mapping[str, str]) -> Guided:
    """`paths` are those of the tools in the request.

    Raises ApiError 400 for a schema that is strict or of the output, and beyond any grammar.
    """
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
        tools = tuple(_within_grammar(family, form, opens, each, paths) for each in tools)
    try:
        return _in_part(family, form, opens, tools, paths)
    except GrammarError as error:  # each for itself is well, but there are too many
        strict = next((each for each in form.tools if each.strict), None)
        if strict:
            raise _too_strict(paths[strict.name], f"with all others {error}") from error
    try:
        return _in_part(family, form, opens, tuple(map(_of_anything, tools)), paths)
    except GrammarError as error:
        raise ApiError.invalid(f"tools: what they accept {error}; send fewer") from error


def _in_part(
    family: Family,
    form: AnswerForm,
    opens: str,
    tools: tuple[Tool, ...],
    paths: Mapping[str, str],
) -> Guided:
    """Guided by other tools in the stead of some of the form's. Raises GrammarError."""
    unguided = tuple(
        paths[each.name] for each, its in zip(form.tools, tools, strict=True) if each is not its
    )
    return Guided(
        family.guide(replace(form, tools=tools), opens), replace(form, guided=False), unguided
    )


def _within_grammar(
    family: Family, form: AnswerForm, opens: str, tool: Tool, paths: Mapping[str, str]
) -> Tool:
    """The tool, or one that accepts anything in its stead."""
    try:
        family.guide(AnswerForm((tool,), thinking=form.thinking), opens)
    except GrammarError as error:
        if tool.strict:
            raise _too_strict(paths[tool.name], str(error)) from error
        return _of_anything(tool)
    return tool


def _of_anything(tool: Tool) -> Tool:
    return replace(tool, schema={"type": "object"})


def _too_strict(path: str, why: str) -> ApiError:
    return ApiError.invalid(f"{path}.strict: its schema {why}; simplify it or leave strict out")

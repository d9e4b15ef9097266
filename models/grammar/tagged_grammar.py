"""Calls whose parameters stand in tags: Qwen's XML and Glimmer's ATEM.

Strings are raw text, so that text may hold what looks like a tag. A value is closed by a closing
tag that a declared parameter's tag or the call's end follows, and by nothing else.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from models.conversation import Tool
from models.grammar.json_grammar import closed, json_value
from models.grammar.lark import GrammarError, checked_together, either, grammar, literal
from models.grammar.schemas import SchemaError, prepared_object
from models.grammar.size import check_sizes

# The grammar has a rule for each pair that may follow each other.
_MAX_PARAMETERS = 64
_ANY_NAME = r"[a-zA-Z0-9_.-]{1,64}"  # as the parser of such calls has it


@dataclass(frozen=True, slots=True)
class _Tags:
    call: str
    call_end: str
    parameter: str
    parameter_end: str
    around_values: str


_XML = _Tags("<function={}>\n", "</function>", "<parameter={}>", "</parameter>", "\n")
_ATEM = _Tags(
    '<atem:invoke name="{}">\n',
    "</atem:invoke>",
    '<atem:parameter name="{}">',
    "</atem:parameter>",
    "",
)


def xml_calls_grammar(tools: Sequence[Tool], prefix: str = "", suffix: str = "") -> str:
    """The grammar of `<function=…>…</function>` of one of the tools, between two expressions.

    Raises GrammarError, which names the tool.
    """
    return _calls_grammar(_XML, tools, prefix, suffix)


def atem_calls_grammar(tools: Sequence[Tool], prefix: str = "", suffix: str = "") -> str:
    """The grammar of `<atem:invoke name="…">…</atem:invoke>`, as `xml_calls_grammar`."""
    return _calls_grammar(_ATEM, tools, prefix, suffix)


def _calls_grammar(tags: _Tags, tools: Sequence[Tool], prefix: str, suffix: str) -> str:
    check_sizes(tools)
    names = [f"t{place}" for place in range(len(tools))]
    rules: list[list[str]] = []
    for name, tool in zip(names, tools, strict=True):
        try:
            rules.append([*_Call(tags, tool, name).rules()])
        except (GrammarError, SchemaError) as error:
            raise GrammarError(str(error), tool.name) from None
    whole = grammar(f"{prefix} {either(names)} {suffix}", chain.from_iterable(rules))
    alone = (
        (tool.name, grammar(name, its)) for tool, name, its in zip(tools, names, rules, strict=True)
    )
    return checked_together(whole, alone)


class _Call:
    """One tool's call: a rule for what may come from each parameter on, and one for each value.
    One that says nothing of its parameters takes any, as text."""

    def __init__(self, tags: _Tags, tool: Tool, rule: str) -> None:
        self._tags, self._tool, self._rule = tags, tool, rule
        schema = closed(prepared_object(tool.schema))
        known = {"type", "properties", "required", "additionalProperties", "$defs"}
        if others := schema.keys() - known:
            raise GrammarError(f"says {min(others)} of its parameters together")
        self._definitions: dict[str, Any] = schema.get("$defs", {})
        self._takes_any = schema.keys() <= {"type"}
        properties: dict[str, Any] = schema.get("properties", {})
        self._parameters = {name: each for name, each in properties.items() if each is not False}
        if len(self._parameters) > _MAX_PARAMETERS:
            raise GrammarError(f"has more than {_MAX_PARAMETERS} parameters")
        self._required = set(schema.get("required", ()))
        if missing := self._required - self._parameters.keys():
            raise GrammarError(f"requires {min(missing)}, which it does not describe")
        for name in self._parameters:
            if re.search(r'[\x00-\x1f<>"\x7f]|^$', name):
                raise GrammarError("has a parameter whose name no tag can hold")
        self._names = list(self._parameters)

    def rules(self) -> Iterator[str]:
        opening = literal(self._tags.call.format(self._tool.name))
        yield f"{self._rule}: {opening} {self._from(0)}"
        yield f"{self._terminal('TWICE')}: /(?s:.*){self._any_close()}(?s:.+)/"
        if self._takes_any:
            yield from self._any_parameters()
            return
        for place in range(len(self._names) + 1):
            nexts = self._nexts(place)
            yield f"{self._from(place)}: " + " | ".join(
                f"{literal(self._opening(each))} {self._value(each)}" for each in nexts
            )
        for place, (name, schema) in enumerate(self._parameters.items()):
            yield from self._value_rules(place, name, schema)
        yield f"{self._value(len(self._names))}: "

    def _value_rules(self, place: int, name: str, schema: Any) -> Iterator[str]:
        around = literal(self._tags.around_values)
        kind = _kind(schema, self._definitions, name)
        if isinstance(kind, _RawText):
            yield f"{self._value(place)}: {around} " + either(
                f"{self._value(place)}_{each} {self._value(each)}"
                for each in self._nexts(place + 1)
            )
            for each in self._nexts(place + 1):
                ends = (
                    f"{self._tags.around_values}{self._tags.parameter_end}\n{self._opening(each)}"
                )
                terminal = self._terminal(f"{place}_{each}")
                yield f"{self._value(place)}_{each}[lazy]: {terminal}"
                yield f"{terminal}: /{kind.pattern}{_escaped(ends)}/ & ~{self._terminal('TWICE')}"
            return
        if isinstance(kind, _Words):
            if any(self._tags.parameter_end in each for each in kind.words):
                raise GrammarError(f"gives {name} a value that would end its own tag")
            value = either(map(literal, kind.words))
        else:
            value = json_value({**schema, "$defs": self._definitions})
        end = literal(f"{self._tags.around_values}{self._tags.parameter_end}\n")
        yield f"{self._value(place)}: {around} {value} {end} {self._from(place + 1)}"

    def _any_parameters(self) -> Iterator[str]:
        before, after = map(literal, self._tags.parameter.split("{}"))
        around, value = literal(self._tags.around_values), self._value(0)
        end = literal(self._tags.call_end)
        yield f"{self._from(0)}: {before} /{_ANY_NAME}/ {after} {value} | {end}"
        yield f"{value}: {around} ({value}_then {value} | {value}_last)"
        for name, ends in (("then", self._any_opening()), ("last", _escaped(self._tags.call_end))):
            terminal = self._terminal(name.upper())
            yield f"{value}_{name}[lazy]: {terminal}"
            closing = _escaped(f"{self._tags.around_values}{self._tags.parameter_end}\n")
            yield f"{terminal}: /(?s:.*){closing}{ends}/ & ~{self._terminal('TWICE')}"

    def _nexts(self, place: int) -> list[int]:
        """Which parameters may come next, from that one on; their number stands for the end."""
        nexts: list[int] = []
        for each in range(place, len(self._names)):
            nexts.append(each)
            if self._names[each] in self._required:
                return nexts
        return [*nexts, len(self._names)]

    def _opening(self, place: int) -> str:
        if place == len(self._names):
            return self._tags.call_end
        return self._tags.parameter.format(self._names[place])

    def _any_close(self) -> str:
        places = range(len(self._names) + 1)
        openings = "|".join(_escaped(self._opening(each)) for each in places)
        if self._takes_any:
            openings += "|" + self._any_opening()
        return rf"{_escaped(self._tags.parameter_end)}\s*({openings})"

    def _any_opening(self) -> str:
        return _ANY_NAME.join(map(_escaped, self._tags.parameter.split("{}")))

    def _from(self, place: int) -> str:
        return f"{self._rule}_from_{place}"

    def _value(self, place: int) -> str:
        return f"{self._rule}_value_{place}"

    def _terminal(self, name: str) -> str:
        return f"{self._rule.upper()}_{name}"


@dataclass(frozen=True, slots=True)
class _RawText:
    pattern: str = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class _Words:
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Json:
    pass


_Kind = _RawText | _Words | _Json


def _kind(schema: Any, definitions: dict[str, Any], name: str) -> _Kind:
    """How a parameter is written. As `models.parsing.typed_values` reads it: what may be a string
    is raw text, and text that reads as another type of the schema is of that type."""
    schema = _resolved(schema, definitions)
    mixed = GrammarError(f"lets {name} be text with conditions that cannot be put in a grammar")
    choices = schema.get("anyOf", schema.get("oneOf"))
    if choices is not None and len(schema) == 1:
        return _kind_of_choices([_kind_or_none(each, definitions, name) for each in choices], mixed)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    types = schema.get("type", ["string"])
    if values is not None:
        return _kind_of_values(cast(list[Any], values), schema, mixed)
    if "string" not in (types if isinstance(types, list) else [types]):
        return _Json()
    if schema.keys() - {"type", "format", "minLength", "maxLength"}:
        raise mixed
    if "minLength" in schema or "maxLength" in schema:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return _RawText(f"(?s:.{{{least},{most}}})")
    return _RawText()


def _kind_or_none(schema: Any, definitions: dict[str, Any], name: str) -> tuple[_Kind, bool]:
    """Its kind, and whether it asks for nothing but a type."""
    kind = _kind(schema, definitions, name)
    return kind, _resolved(schema, definitions).keys() <= {"type", "format"}


def _kind_of_choices(choices: list[tuple[_Kind, bool]], mixed: GrammarError) -> _Kind:
    kinds = [kind for kind, _ in choices]
    if all(isinstance(each, _Json) for each in kinds):
        return _Json()
    if all(plain for _, plain in choices):
        return _RawText()
    raise mixed


def _kind_of_values(values: list[Any], schema: dict[str, Any], mixed: GrammarError) -> _Kind:
    if not any(isinstance(each, str) for each in values):
        return _Json()
    if schema.keys() - {"type", "enum", "const", "format"}:
        raise mixed
    words = [each if isinstance(each, str) else json.dumps(each) for each in values]
    return _Words(tuple(dict.fromkeys(words)))


def _resolved(schema: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema, or the one that it is another name for."""
    while isinstance(schema, dict) and len(cast(dict[str, Any], schema)) == 1:
        schema = cast(dict[str, Any], schema)
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        elif len(schema.get("allOf", ())) == 1:
            (schema,) = schema["allOf"]
        else:
            break
    return cast(dict[str, Any], schema) if isinstance(schema, dict) else {}


def _escaped(text: str) -> str:
    """The text in a regular expression between slashes."""
    return re.sub(r"[.^$*+?()\[\]{}|\\/]", r"\\\g<0>", text).replace("\n", r"\n")

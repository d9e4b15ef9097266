"""Answers as each family's models write them, in pieces: texts, and markers."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from models.catalog import Checkpoint
from models.conversation import Block, Thinking, ToolCall
from models.families.prompt_tokens import PromptTokens


class Marker(str):
    """One token, whatever a text that spells it is."""


Pieces = Iterable[str]
# What writes an answer, knowing whether the prompt has opened its thinking.
Writer = Callable[[Sequence[Block], bool], Pieces]


def ids_of(checkpoint: Checkpoint, pieces: Pieces) -> list[int]:
    tokens = PromptTokens(checkpoint)
    marked = (tokens.special[each] if isinstance(each, Marker) else each for each in pieces)
    return tokens.encode(marked).tolist()


def qwen_json(answer: Sequence[Block], opened: bool) -> Pieces:
    for place, each in enumerate(answer):
        match each:
            case Thinking(text):
                yield from () if opened else (Marker("<think>"), "\n")
                yield from (f"{text}\n", Marker("</think>"), "\n\n")
            case ToolCall():
                call = {"name": each.name, "arguments": each.arguments}
                written = json.dumps(call, ensure_ascii=False)
                yield "\n" if place else ""
                yield from (Marker("<tool_call>"), f"\n{written}\n", Marker("</tool_call>"))
            case _:
                yield each.text


def qwen_xml(answer: Sequence[Block], opened: bool) -> Pieces:
    for place, each in enumerate(answer):
        match each:
            case Thinking(text):
                yield from () if opened else (Marker("<think>"), "\n")
                yield from (f"{text}\n", Marker("</think>"), "\n\n")
            case ToolCall():
                values = "".join(
                    f"<parameter={name}>\n{_in_tags(value)}\n</parameter>\n"
                    for name, value in each.arguments.items()
                )
                call = f"\n<function={each.name}>\n{values}</function>\n"
                yield "\n\n" if place else ""
                yield from (Marker("<tool_call>"), call, Marker("</tool_call>"))
            case _:
                yield each.text


def gemma4(answer: Sequence[Block], opened: bool) -> Pieces:
    for each in answer:
        match each:
            case Thinking(text):
                yield from () if opened else (Marker("<|channel>"), "thought\n")
                yield from (f"{text}\n", Marker("<channel|>"))
            case ToolCall():
                yield from (Marker("<|tool_call>"), f"call:{each.name}")
                yield from _in_gemma(each.arguments)
                yield Marker("<tool_call|>")
            case _:
                yield each.text


def glimmer(answer: Sequence[Block], opened: bool) -> Pieces:
    for place, each in enumerate(answer):
        if place:
            yield from (Marker("<|eom|>"), Marker("<|start|>"), "assistant")
        match each:
            case Thinking(text):
                recipient = "self"
            case ToolCall():
                recipient, text = each.name, _atem(each)
            case _:
                recipient, text = "user", each.text
        yield from (f" to={recipient}", Marker("<|message|>"), text)


def _in_tags(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _in_gemma(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield from (Marker('<|"|>'), value, Marker('<|"|>'))
        case dict():
            yield "{"
            for place, (key, each) in enumerate(sorted(cast(dict[str, Any], value).items())):
                yield f"{',' if place else ''}{key}:"
                yield from _in_gemma(each)
            yield "}"
        case list():
            yield "["
            for place, each in enumerate(cast(list[Any], value)):
                yield "," if place else ""
                yield from _in_gemma(each)
            yield "]"
        case _:
            yield json.dumps(value)


def _atem(call: ToolCall) -> str:
    values = "".join(
        f'<atem:parameter name="{name}">{_in_tags(value)}</atem:parameter>\n'
        for name, value in call.arguments.items()
    )
    invoke = f'<atem:invoke name="{call.name}">\n{values}</atem:invoke>'
    return f"<atem:function_calls>\n{invoke}\n</atem:function_calls>"

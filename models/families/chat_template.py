"""A checkpoint's own chat template, run in a sandbox."""

import json
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.catalog import Checkpoint, CheckpointError
from models.conversation import Tool
from models.families.prompt_tokens import PromptTokens

Message = dict[str, Any]

# Characters that nobody has given a meaning.
_PRIVATE = range(0xE000, 0xF900)


class TemplateFailed(Exception):
    """The template cannot write the messages down; the message is its own, or the interpreter's."""


class ChatTemplate:
    """Renders messages to pieces of a prompt: markers as ids, all else as text.

    Only what the template itself writes can be a marker. In the texts that it is given, what a
    marker begins with is hidden from it and put back afterwards; the template sees all the rest of
    them, so that what it does with a text (such as to strip it) is done.
    """

    def __init__(self, checkpoint: Checkpoint, tokens: PromptTokens) -> None:
        """Raises CheckpointError for a checkpoint without a template, or with what is none."""
        source = checkpoint.chat_template()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        filters: dict[str, Any] = {"tojson": _to_json}
        environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
        try:
            self._render = environment.from_string(source).render
        except TemplateError as error:
            raise CheckpointError(
                f"{checkpoint.id} has a chat template that is not one ({error}): pull or copy "
                "it again"
            ) from error
        self._variables: dict[str, Any] = {
            **checkpoint.named_tokens(),
            "raise_exception": _refuse,
            "strftime_now": _now,
        }
        self._ids = tokens.special
        # Those that the template names come first: it is they that will be found.
        markers = sorted(self._ids, key=lambda each: (each not in source, -len(each)))
        self._markers = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        self._beginnings = sorted({each[0] for each in markers})

    def pieces(self, messages: Sequence[Message], **variables: Any) -> list[str | int]:
        """Raises TemplateFailed."""
        given: dict[str, Any] = {"messages": list(messages), **variables}
        hidden = _stand_ins(self._beginnings, given)
        shown = {there: here for here, there in hidden.items()}
        given = _translated(given, str.maketrans(hidden))
        with _failing():
            text = self._render({**self._variables, **given})
        return list(self._split(text, str.maketrans(shown)))

    def _split(self, text: str, shown: dict[int, str]) -> Iterator[str | int]:
        start = 0
        for found in self._markers.finditer(text):
            if found.start() > start:
                yield text[start : found.start()].translate(shown)
            yield self._ids[found[0]]
            start = found.end()
        if start < len(text):
            yield text[start:].translate(shown)


def functions(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """The tools as templates expect them: None if there are none."""
    return [
        {
            "type": "function",
            "function": {
                "name": each.name,
                "description": each.description,
                "parameters": each.schema,
            },
        }
        for each in tools
    ] or None


@contextmanager
def _failing() -> Generator[None]:
    try:
        yield
    except (TemplateError, TemplateFailed) as error:
        raise TemplateFailed(str(error)) from error
    except Exception as error:  # a template is a program: it may fail in any way
        raise TemplateFailed(f"{type(error).__name__}: {error}") from error


def _stand_ins(characters: Sequence[str], given: Any) -> dict[str, str]:
    """For each of the characters one that none of the given texts has."""
    used = set[str]().union(*_texts(given))
    unused = (chr(each) for each in _PRIVATE if chr(each) not in used)
    try:
        return {each: next(unused) for each in characters}
    except StopIteration:
        raise TemplateFailed("the texts use all private characters of Unicode") from None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in cast(dict[str, Any], value).items():
            yield key
            yield from _texts(each)
    elif isinstance(value, list):
        for each in cast(list[Any], value):
            yield from _texts(each)


def _translated(value: Any, table: dict[int, str]) -> Any:
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {key.translate(table): _translated(each, table) for key, each in items}
    if isinstance(value, list):
        return [_translated(each, table) for each in cast(list[Any], value)]
    return value


def _to_json(value: Any, indent: int | None = None, sort_keys: bool = False, **_: Any) -> str:
    # Jinja's own escapes what HTML needs, and checkpoints have not learned that.
    return json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateFailed(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)

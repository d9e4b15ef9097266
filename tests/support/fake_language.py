"""A language for answers that no family speaks: markers in angle brackets, calls as `name:JSON`.

Each byte but theirs is one token; a call is written `<call>run:{"cmd":"ls"}</call>`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from tokenizers import AddedToken

from models.catalog import Checkpoint
from models.conversation import AnswerForm, ToolChoice
from models.families.family import Capabilities
from models.families.llama import LlamaFamily
from models.parsing.answer import AnswerParser
from models.parsing.calls import CallWriter
from models.parsing.events import Event, TextDelta, ThinkingDelta, ThinkingEnd
from models.parsing.syntax import Syntax
from models.parsing.token_text import TokenBytes
from service.requests.answer_plan import AnswerPlan, Display
from service.scheduling.answer import Answer
from tests.support.tiny_checkpoint import byte_tokenizer, write_tiny_checkpoint

MARKERS = ("<think>", "</think>", "<call>", "</call>")
END = "<|im_end|>"
_TOKENIZER = byte_tokenizer()
_TOKENIZER.add_special_tokens([AddedToken(each, special=True) for each in MARKERS])
_IDS = {_TOKENIZER.token_to_id(each): each for each in MARKERS}
_BYTES = TokenBytes(_TOKENIZER)


class FakeFamily(LlamaFamily):
    """Prompts of the llama family, answers in this language. With `guided` calls are shown as they
    grow, though nothing guides them."""

    name = "fake"
    capabilities = Capabilities(
        tools=True, thinking=frozenset(["adaptive", "enabled", "between_tools"])
    )

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            _BYTES,
            _Language(streams=form.guided),
            markers=_IDS,
            stop_sequences=form.stop_sequences,
        )


def write_fake_checkpoint(folder: Path) -> Path:
    """For the scripted engine only: its weights know nothing of the markers."""
    write_tiny_checkpoint(folder, context_tokens=16_384)
    _TOKENIZER.save(str(folder / "tokenizer.json"))
    return folder


def speaks_it(checkpoint: Checkpoint) -> bool:
    return "<call>" in (checkpoint.path / "tokenizer.json").read_text()


def ids_of(text: str) -> list[int]:
    return _TOKENIZER.encode(text).ids


def answer(
    *,
    max_tokens: int = 1000,
    streams: bool = True,
    stop_sequences: tuple[str, ...] = (),
    parallel: bool = True,
    display: Display = "summarized",
    message_id: str = "msg_1",
) -> Answer:
    """An answer of which nothing is there yet; with `streams` its calls are shown as they grow."""
    form = AnswerForm(
        choice=ToolChoice(parallel=parallel),
        stop_sequences=stop_sequences,
    )
    parser = AnswerParser(_BYTES, _Language(streams), markers=_IDS, stop_sequences=stop_sequences)
    return Answer(
        parser,
        (_TOKENIZER.token_to_id(END),),
        max_tokens,
        plan=AnswerPlan(form, display=display),
        message_id=message_id,
        sign=lambda text, place: f"signed {place} {text}",
    )


def said(text: str, **more: Any) -> Answer:
    """The answer that is there when the model has written `text`, a token at a time."""
    made = answer(**more)
    for token in ids_of(text):
        made.take([token])
    return made


class _Language(Syntax):
    def __init__(self, streams: bool) -> None:
        self._writer = CallWriter(_fault, streams=streams)
        self._in_call = False
        self._call = ""
        self._named = False

    def text(self, text: str) -> Iterator[Event]:
        if self.thinks:
            yield ThinkingDelta(text)
        elif self._in_call:
            self._call += text
            if self._named:
                yield from self._writer.arguments(text)
            elif (found := re.fullmatch("(.*):(.*)", self._call)) is not None:
                self._named = True
                yield from self._writer.start(found[1])
                yield from self._writer.arguments(found[2])
        else:
            yield TextDelta(text)

    def marker(self, marker: str) -> Iterator[Event]:
        match marker:
            case "<think>":
                self.thinks = True
            case "</think>":
                self.thinks = False
                yield ThinkingEnd()
            case "<call>":
                self._in_call, self._named, self._call = True, False, ""
            case _:
                self._in_call = False
                yield from self._writer.end(orjson.loads(self._call.partition(":")[2]))

    def end(self, *, cut: bool) -> Iterator[Event]:
        yield from ()


def _fault(name: str, arguments: dict[str, Any]) -> str | None:
    return "an argument is bad" if "bad" in arguments else None

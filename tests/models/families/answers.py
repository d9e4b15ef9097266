"""Answers as they are written, read at every split and followed by their guide."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from models.conversation import AnswerForm
from models.families.family import Family
from models.grammar.guide import Guide
from models.grammar.vocabulary import Vocabulary
from models.parsing.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    InvalidCall,
    Stopped,
    TextDelta,
    ThinkingDelta,
    ThinkingEnd,
)
from models.parsing.syntax import Syntax
from tests.models.parsing.call_bodies import splits


def blocks(events: Sequence[Event]) -> list[Any]:
    """What the events say, in blocks; a call without an end is only its name."""
    made: list[Any] = []
    ended = True
    for event in events:
        match event:
            case TextDelta(text):
                if made and isinstance(made[-1], str):
                    made[-1] += text
                else:
                    made.append(text)
            case ThinkingDelta(text):
                if ended:
                    made.append(("thinks", ""))
                made[-1] = ("thinks", made[-1][1] + text)
                ended = False
            case ThinkingEnd():
                assert not ended, "a thinking block that is empty ends"
                ended = True
            case CallStart(name):
                made.append((name,))
            case CallArguments():
                assert len(made[-1]) == 1
            case CallEnd(arguments):
                made[-1] = (made[-1][0], arguments)
            case InvalidCall(name, _):
                made.append(("invalid", name))
            case Stopped(sequence):
                made.append(("stopped", sequence))
    return made


def read(
    syntax: Callable[[], Syntax], markers: Collection[str], raw: str, *, cut: bool = False
) -> list[Any]:
    """The blocks of an answer, which are the same at every split of its text."""
    whole: list[Any] | None = None
    for pieces in _pieces(raw, markers):
        read = syntax()
        events: list[Event] = []
        for each in pieces:
            events.extend(read.marker(each) if each in markers else read.text(each))
        events.extend(read.end(cut=cut))
        whole = blocks(events) if whole is None else whole
        assert blocks(events) == whole, pieces
    assert whole is not None
    return whole


def _pieces(raw: str, markers: Collection[str]) -> Iterator[list[str]]:
    parts = [each for each in re.split(f"({'|'.join(map(re.escape, markers))})", raw) if each]
    yield parts
    for place, part in enumerate(parts):
        if part not in markers:
            for pieces in splits(part):
                yield [*parts[:place], *pieces, *parts[place + 1 :]]


class Follower:
    """Follows guides of a family over its own vocabulary."""

    def __init__(self, family: Family, folder: Path) -> None:
        self._family = family
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._vocabulary = Vocabulary(folder)

    def refused(self, form: AnswerForm, opens: str, raw: str) -> str | None:
        """What the guide leaves of the answer, from the first token on that it does not allow; ""
        if the answer may not end there; None if it is allowed."""
        spec = self._family.guide(form, opens)
        assert spec is not None
        guide = Guide(spec, self._vocabulary, self._family.stop_ids)
        ids = self._tokenizer.encode(raw, add_special_tokens=False).ids
        for place, token in enumerate(ids):
            forced, mask = guide.forced(), guide.mask()
            if forced not in (None, token) or (mask is not None and not mask[token]):
                return self._tokenizer.decode(ids[place:], skip_special_tokens=False)
            guide.advance(token)
        mask = guide.mask()
        return None if mask is None or any(mask[each] for each in self._family.stop_ids) else ""

    def events(self, form: AnswerForm, opens: str, raw: str) -> tuple[list[Any], int]:
        """The blocks of the answer, token by token, and how many tokens were thinking."""
        parser = self._family.parser(form, opens)
        events: list[Event] = []
        for token in self._tokenizer.encode(raw, add_special_tokens=False).ids:
            events += parser.feed(token)
        return blocks(events + parser.end(cut=False)), parser.thinking_tokens

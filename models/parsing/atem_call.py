"""Calls as Muse Glimmer writes them: `<atem:invoke>` around `<atem:parameter>` around values."""

import re
from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto

from models.conversation import Tool
from models.parsing.call_body import CallBody, NotACall
from models.parsing.calls import CallWriter
from models.parsing.events import Event
from models.parsing.tagged_arguments import TaggedArguments

_CALLS, _CALLS_END = "<atem:function_calls", "</atem:function_calls"
_INVOKE, _INVOKE_END = "<atem:invoke", "</atem:invoke"
_PARAMETER, _PARAMETER_END = "<atem:parameter", "</atem:parameter>"
_NAME = re.compile(r'\bname="([^"]*)"')
_MAX_TAG = 1000
# Between the end of a value and the next tag; after more of it the end is none, so that nothing is
# held back at length.
_MAX_SPACE = 64


class _At(Enum):
    CALL = auto()  # before a call, or after the last one
    PARAMETER = auto()  # before one, or before the end of the call
    VALUE = auto()


class AtemCalls(CallBody):
    """A value ends where its closing tag is followed by the tag of another parameter that the tool
    declares, or by the end of the call and nothing but a call after it; any other tag in a value is
    text. Between its tags nothing is taken off it. Tags may have attributes beside the name.
    """

    def __init__(self, tools: Sequence[Tool], writer: CallWriter) -> None:
        super().__init__(tools, writer)
        self._schemas = {each.name: each.schema for each in tools}
        self._arguments = TaggedArguments({}, writer)
        self._at = _At.CALL
        self._rest = ""  # that has not been understood yet

    @property
    def closable(self) -> bool:
        return True  # the close is a marker, and those are never a part of a value

    def text(self, text: str) -> Iterator[Event]:
        self._unread.append(text)
        if self._at is _At.VALUE and not self._rest and "<" not in text:
            yield from self._arguments.grow(text)
            return
        self._rest += text
        while (yield from self._step()):
            pass

    def end(self, *, closed: bool) -> Iterator[Event]:
        if self._at is _At.VALUE:
            close = self._rest.find(_PARAMETER_END)
            after = self._rest[close + len(_PARAMETER_END) :].strip()
            if close < 0 or not f"{_INVOKE_END}>{_CALLS_END}>".startswith(_unspaced(after)):
                raise NotACall("its last value has no end")
            yield from self._end_value(close)
        rest = _unspaced(self._rest)
        if self._at is _At.PARAMETER and f"{_INVOKE_END}>".startswith(rest[: len(_INVOKE_END) + 1]):
            self._rest = ""
            yield from self._end_call()
        if not self.calls:
            raise NotACall("its tags are not complete")

    def _step(self) -> Generator[Event, None, bool]:
        """Reads on; False if more text is needed for that."""
        if self._at is _At.VALUE:
            return (yield from self._read_value())
        expected = (
            (_CALLS, _CALLS_END, _INVOKE) if self._at is _At.CALL else (_PARAMETER, _INVOKE_END)
        )
        found = self._tag(*expected)
        if found is None:
            return False
        tag, attributes = found
        if tag == _INVOKE:
            yield from self._begin(_name(attributes).removesuffix(".*"))
            self._arguments = TaggedArguments(self._schemas.get(self.name or "", {}), self._writer)
            self._at = _At.PARAMETER
        elif tag == _PARAMETER:
            yield from self._arguments.begin(_name(attributes))
            self._at = _At.VALUE
        elif tag == _INVOKE_END:
            yield from self._end_call()
        return True

    def _tag(self, *tags: str) -> tuple[str, str] | None:
        """The one of the tags that stands here, and its attributes; None if it may be coming."""
        self._rest = self._rest.lstrip()
        end = self._rest.find(">")
        for tag in tags:
            if end >= 0 and self._rest.startswith(tag):
                attributes, self._rest = self._rest[len(tag) : end], self._rest[end + 1 :]
                return tag, attributes
        if end >= 0 or len(self._rest) > _MAX_TAG or not _may_become(self._rest, tags):
            raise NotACall("it is not written in tags")
        return None

    def _read_value(self) -> Generator[Event, None, bool]:
        close = self._rest.find(_PARAMETER_END)
        if close < 0:
            opens = self._rest.rfind("<")
            tail = self._rest[opens:] if opens >= 0 else ""
            held = len(tail) if tail and _PARAMETER_END.startswith(tail) else 0
            yield from self._grow_to(len(self._rest) - held)
            return False
        ends = self._ends(self._rest[close + len(_PARAMETER_END) :])
        if ends is None:
            yield from self._grow_to(close)
            return False
        if ends:
            yield from self._end_value(close)
        else:
            yield from self._grow_to(close + len(_PARAMETER_END))
        return True

    def _ends(self, after: str) -> bool | None:
        """Whether a closing tag with that after it ends the value; None if that is not known."""
        text = after.lstrip()
        if not text or len(after) - len(text) > _MAX_SPACE:
            return None if len(after) <= _MAX_SPACE else False
        if text.startswith(_INVOKE_END + ">"):
            following = text[len(_INVOKE_END) + 1 :].lstrip()
            if following.startswith((_CALLS_END, _INVOKE + " ")):
                return True
            return None if _may_become(following, (_CALLS_END, _INVOKE + " ")) else False
        if not text.startswith(_PARAMETER):
            return None if _may_become(text, (_PARAMETER, _INVOKE_END + ">")) else False
        tag, end, _ = text.partition(">")
        if len(tag) > _MAX_TAG or "<" in tag[1:]:
            return False
        if not end:
            return None
        name = _NAME.search(tag)
        return name is not None and self._may_come(name[1])

    def _may_come(self, name: str) -> bool:
        expected = self._arguments.expected
        return expected is None or name in expected

    def _grow_to(self, place: int) -> Sequence[Event]:
        piece, self._rest = self._rest[:place], self._rest[place:]
        return self._arguments.grow(piece)

    def _end_value(self, close: int) -> Iterator[Event]:
        yield from self._grow_to(close)
        yield from self._arguments.end_value()
        self._rest = self._rest[len(_PARAMETER_END) :]
        self._at = _At.PARAMETER

    def _end_call(self) -> Iterator[Event]:
        yield from self._arguments.end()
        self._ended(self._rest)
        self._at = _At.CALL


def _name(attributes: str) -> str:
    found = _NAME.search(attributes)
    if found is None:
        raise NotACall("one of its tags has no name")
    return found[1]


def _may_become(text: str, tags: Sequence[str]) -> bool:
    return any(tag.startswith(text[: len(tag)]) for tag in tags)


def _unspaced(text: str) -> str:
    return re.sub(r"\s+", "", text)

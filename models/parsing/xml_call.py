"""Calls written in tags: `<function=…>` around `<parameter=…>` around each value."""

import re
from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto

from models.conversation import Tool
from models.parsing.call_body import CallBody, NotACall
from models.parsing.calls import CallWriter
from models.parsing.events import Event
from models.parsing.tagged_arguments import TaggedArguments

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MAX_NAME = 300
# Between a tag and the next; more of it is text, so that nothing is ever held back at length.
_FEW_SPACES = re.compile(r"\s{0,64}")
_SPACES = re.compile(r"\s*")
# Of a tool that declares no parameters, or of a tool that is not declared.
_ANY_PARAMETER = re.compile(r"<parameter=[\w.-]{0,64}")


class _At(Enum):
    CALL = auto()  # before a call, or after the last one
    CALL_NAME = auto()
    PARAMETER = auto()  # before one, or before the end of the call
    PARAMETER_NAME = auto()
    VALUE = auto()


class _Follows(Enum):
    """Whether what follows the close of a value makes it one."""

    YES = auto()
    NO = auto()
    PERHAPS = auto()  # nothing of it is there, or only a beginning


class XmlCalls(CallBody):
    """A value ends where its closing tag is followed by the tag of another declared parameter, or
    by the end of the call with nothing but a call after it; all other tags in a value are text.

    One line's end after the opening tag and one before the closing tag belong to the tags.
    """

    def __init__(self, tools: Sequence[Tool], writer: CallWriter, close: str = "") -> None:
        super().__init__(tools, writer, close)
        self._schemas = {each.name: each.schema for each in tools}
        self._arguments = TaggedArguments({}, writer)
        self._at = _At.CALL
        self._rest = ""  # what was read, understood up to a place
        self._place = 0
        self._starts = False  # nothing of the value was read

    @property
    def closable(self) -> bool:
        return self._at is not _At.VALUE or self._last_close() >= 0

    def text(self, text: str) -> Iterator[Event]:
        self._unread.append(text)
        if self._at is _At.VALUE and self._is_plain(text):
            yield from self._arguments.grow(text)
            return
        self._rest = self._rest[self._place :] + text
        self._place = 0
        while (yield from self._step()):
            pass

    def end(self, *, closed: bool) -> Iterator[Event]:
        if self._at is _At.VALUE:
            if (close := self._last_close()) < 0:
                raise NotACall("its last value has no end")
            yield from self._end_value(close)
        rest = self._rest[self._place :].strip()
        ends = self._ends_call(rest) or (closed and not rest and self._arguments.has_any)
        if self._at is _At.PARAMETER and ends:
            self._place = len(self._rest)
            yield from self._end_call()
        if self._at is not _At.CALL or not self.calls or not self._is_over:
            raise NotACall("its tags are not complete")

    def _step(self) -> Generator[Event, None, bool]:
        """Reads on; False if more text is needed for that."""
        match self._at:
            case _At.CALL:
                if (self.calls and self._is_over) or not self._tag(_FUNCTION):
                    return False
                self._at = _At.CALL_NAME
            case _At.CALL_NAME:
                if (name := self._name()) is None:
                    return False
                yield from self._begin_call(name)
            case _At.PARAMETER:
                tag = self._tag(_PARAMETER, _FUNCTION_END)
                if tag == _FUNCTION_END:
                    yield from self._end_call()
                elif tag:
                    self._at = _At.PARAMETER_NAME
                return bool(tag)
            case _At.PARAMETER_NAME:
                if (name := self._name()) is None:
                    return False
                yield from self._arguments.begin(name)
                self._at, self._starts = _At.VALUE, True
            case _At.VALUE:
                return (yield from self._read_value())
        return True

    def _tag(self, *tags: str) -> str | None:
        """The one of the tags that stands here, after white space; None if it may be coming."""
        self._place = _SPACES.match(self._rest, self._place).end()  # pyright: ignore[reportOptionalMemberAccess]
        for tag in tags:
            if self._rest.startswith(tag, self._place):
                self._place += len(tag)
                return tag
        if not any(self._may_become(tag, self._place) for tag in tags):
            raise NotACall("it is not written in tags")
        return None

    def _may_become(self, tag: str, place: int) -> bool:
        return tag.startswith(self._rest[place : place + len(tag)])

    def _name(self) -> str | None:
        """The name that a tag ends with; None if it has not ended."""
        end = self._rest.find(">", self._place)
        if (end if end >= 0 else len(self._rest)) - self._place > _MAX_NAME:
            raise NotACall("a name in it is too long")
        if end < 0:
            return None
        name, self._place = self._rest[self._place : end], end + 1
        return name.strip()

    def _begin_call(self, name: str) -> Iterator[Event]:
        yield from self._begin(name)
        self._arguments = TaggedArguments(self._schemas.get(self.name or "", {}), self._writer)
        self._at = _At.PARAMETER

    def _end_call(self) -> Iterator[Event]:
        yield from self._arguments.end()
        self._ended(self._rest[self._place :])
        self._at = _At.CALL

    def _read_value(self) -> Generator[Event, None, bool]:
        if self._starts:
            if self._place == len(self._rest):
                return False
            self._starts = False
            self._place += self._rest.startswith("\n", self._place)
        close = self._rest.find(_PARAMETER_END, self._place)
        if close < 0:
            yield from self._grow_to(self._unmarked())
            return False
        match self._follows(close):
            case _Follows.YES:
                yield from self._end_value(close)
                return True
            case _Follows.PERHAPS:
                yield from self._grow_to(self._without_line_end(close))
                return False
            case _Follows.NO:
                yield from self._grow_to(close + len(_PARAMETER_END))
                return True

    def _unmarked(self) -> int:
        """Up to where no closing tag can have begun."""
        opens = self._rest.rfind("<", max(self._place, len(self._rest) - len(_PARAMETER_END)))
        is_tag = opens >= 0 and self._may_become(_PARAMETER_END, opens)
        return self._without_line_end(opens if is_tag else len(self._rest))

    def _without_line_end(self, place: int) -> int:
        return place - (place > self._place and self._rest[place - 1] == "\n")

    def _is_plain(self, text: str) -> bool:
        """Whether it is part of the value whatever follows, nothing being held back."""
        return (
            self._place == len(self._rest)
            and not self._starts
            and "<" not in text
            and not text.endswith("\n")
        )

    def _grow_to(self, place: int) -> Sequence[Event]:
        piece, self._place = self._rest[self._place : place], place
        return self._arguments.grow(piece)

    def _end_value(self, close: int) -> Iterator[Event]:
        yield from self._grow_to(self._without_line_end(close))
        yield from self._arguments.end_value()
        self._place = close + len(_PARAMETER_END)
        self._at = _At.PARAMETER

    def _last_close(self) -> int:
        """Where the value ends if the call ends here; negative if it does not."""
        close = self._rest.find(_PARAMETER_END, self._place)
        if close < 0:
            return close
        after = self._rest[close + len(_PARAMETER_END) :].strip()
        return close if not after or self._ends_call(after) else -1

    def _ends_call(self, text: str) -> bool:
        """Whether it is the end of a call, and what may be of the close."""
        return text.startswith(_FUNCTION_END) and self._may_be_close(
            text.removeprefix(_FUNCTION_END)
        )

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing more, or what may be of the close."""
        return self._may_be_close(self._rest[self._place :])

    def _follows(self, close: int) -> _Follows:
        place = self._after_space(close + len(_PARAMETER_END))
        if self._rest.startswith(_FUNCTION_END, place):
            place = self._after_space(place + len(_FUNCTION_END))
            if self._may_be_close(self._rest[place:]):
                return _Follows.PERHAPS
            return self._name_follows(_FUNCTION, place, list(self._schemas))
        if self._rest.startswith(_PARAMETER, place):
            return self._parameter_follows(place)
        may_become = (self._may_become(each, place) for each in (_FUNCTION_END, _PARAMETER))
        return _Follows.PERHAPS if any(may_become) else _Follows.NO

    def _after_space(self, place: int) -> int:
        return _FEW_SPACES.match(self._rest, place).end()  # pyright: ignore[reportOptionalMemberAccess]

    def _name_follows(self, tag: str, place: int, names: Sequence[str]) -> _Follows:
        """Whether the tag stands there, with one of the names."""
        begun = self._rest[place : place + len(tag) + _MAX_NAME]
        tags = [f"{tag}{name}>" for name in names]
        if begun.startswith(tuple(tags)):
            return _Follows.YES
        may_become = any(each.startswith(begun) for each in tags)
        return _Follows.PERHAPS if may_become else _Follows.NO

    def _parameter_follows(self, place: int) -> _Follows:
        if (expected := self._arguments.expected) is not None:
            return self._name_follows(_PARAMETER, place, expected)
        found = _ANY_PARAMETER.match(self._rest, place)
        if found and found.end() == len(self._rest):
            return _Follows.PERHAPS
        return _Follows.YES if found and self._rest[found.end()] == ">" else _Follows.NO

"""Calls written as JSON: `{"name": "…", "arguments": {…}}`, in either order, or a list of them."""

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any, cast

from models.conversation import Tool
from models.parsing.call_body import CallBody, NotACall
from models.parsing.calls import CallWriter
from models.parsing.events import Event
from models.parsing.json_text import MAX_DEPTH, read_json, whole_characters

_SPACE = " \t\n\r"
_IN_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OUTSIDE = re.compile(r'[^"\[\]{}]*')
_SCALAR = re.compile(r"[^,\]}\s]*")


class _Expects(Enum):
    CALL = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class JsonCalls(CallBody):
    """Strings are told by JSON's own rules, so that a close inside of one is text.

    What is streamed of the arguments are the model's own characters, but never half an escape or
    half a surrogate pair. With `strict`, a call has no other keys and is not in a list.
    """

    def __init__(
        self, tools: Sequence[Tool], writer: CallWriter, close: str = "", *, strict: bool = False
    ) -> None:
        super().__init__(tools, writer, close)
        self._strict = strict
        self._in_list = False
        self._expects = _Expects.CALL
        self._value: _Value | None = None  # that has begun: a key or what belongs to one
        self._key = ""
        self._arguments = ""  # once they are complete
        self._escapes = _WholeEscapes()
        self._after = ""  # the last call: of its close

    @property
    def closable(self) -> bool:
        return self._value is None or not self._value.in_string

    def text(self, text: str) -> Iterator[Event]:
        self._unread.append(text)
        if self._value is not None and self._value.grows(text):
            if self.name is not None and self._is_arguments:
                yield from self._writer.arguments(self._escapes.feed(text))
            return
        place = 0
        while place < len(text):
            start = place
            if self._value is None:
                place += 1
                if text[start] in _SPACE:
                    continue
                if not self._begins_value(text[start]):
                    yield from self._between(text, start)
                    continue
                self._value = _Value(text[start])
            place = self._value.feed(text, place)
            if self.name is not None and self._is_arguments:
                yield from self._writer.arguments(self._escapes.feed(text[start:place]))
            if self._value.ended:
                yield from self._end_value(self._value.text)

    def end(self, *, closed: bool) -> Iterator[Event]:
        if self._expects is not _Expects.CALL or not self.calls:
            raise NotACall("its JSON is not complete")
        yield from ()

    @property
    def _is_arguments(self) -> bool:
        return self._expects is _Expects.VALUE and self._key == "arguments"

    def _begins_value(self, character: str) -> bool:
        is_key = self._expects is _Expects.KEY and character == '"'
        return is_key or self._expects is _Expects.VALUE

    def _between(self, text: str, place: int) -> Iterator[Event]:
        character = text[place]
        match self._expects:
            case _Expects.CALL if character == "{":
                self._arguments, self._escapes, self._after = "", _WholeEscapes(), ""
                self._expects = _Expects.KEY
            case _Expects.CALL if character in "[,]" and not self._strict:
                if character != "[" and not self._in_list:
                    raise NotACall("its JSON is broken")
                self._in_list = True
            case _Expects.CALL if character == "}" and self.calls and self._wrapper_end:
                pass  # one brace too many, as models write
            case _Expects.CALL if self.calls and self._may_be_close(self._after + character):
                self._after += character
            case _Expects.COLON if character == ":":
                self._expects = _Expects.VALUE
            case _Expects.COMMA if character == ",":
                self._expects = _Expects.KEY
            case _Expects.COMMA if character == "}":
                yield from self._end_call(text[place + 1 :])
            case _:
                raise NotACall("its JSON is broken")

    def _end_value(self, text: str) -> Iterator[Event]:
        is_arguments, self._value = self._is_arguments, None
        if self._expects is _Expects.KEY:
            self._key = _string(text)
            if self._strict and self._key not in ("name", "arguments"):
                raise NotACall("it has other keys than a call")
            self._expects = _Expects.COLON
            return
        self._expects = _Expects.COMMA
        if is_arguments:
            self._arguments = text
            if self.name is not None:
                yield from self._writer.arguments(self._escapes.flush())
        elif self._key == "name" and self.name is None:
            yield from self._begin(_string(text))
            yield from self._writer.arguments(whole_characters(self._arguments))

    def _end_call(self, rest: str) -> Iterator[Event]:
        if self.name is None:
            raise NotACall("it has no name")
        if not self._arguments:  # a tool without parameters may come without them
            yield from self._writer.arguments("{}")
        arguments = _read(self._arguments or "{}")
        if not isinstance(arguments, dict):
            raise NotACall("its arguments are not an object")
        yield from self._writer.end(cast(dict[str, Any], arguments))
        self._ended(rest)
        self._expects = _Expects.CALL


class _Value:
    """One JSON value, from its first character to where it ends."""

    def __init__(self, first: str) -> None:
        self.in_string = first == '"'
        self.ended = False
        self._pieces = [first]
        self._depth = 1 if first in "[{" else 0
        self._is_scalar = first not in '"[{'
        self._escaped = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def grows(self, text: str) -> bool:
        """Whether the text is just more of a string; what most pieces of an answer are."""
        if not self.in_string or self._escaped or '"' in text or "\\" in text:
            return False
        self._pieces.append(text)
        return True

    def feed(self, text: str, place: int) -> int:
        """Where the value ends, or the text."""
        start = place
        while place < len(text) and not self.ended:
            if self._is_scalar:
                place = _SCALAR.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess]
                self.ended = place < len(text)
            elif self.in_string:
                place = self._string(text, place)
            else:
                place = self._structure(text, place)
        self._pieces.append(text[start:place])
        return place

    def _string(self, text: str, place: int) -> int:
        if self._escaped:
            self._escaped = False
            return place + 1
        place = _IN_STRING.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess]
        if place == len(text):
            return place
        if text[place] == "\\":  # the last character there is
            self._escaped = True
        else:
            self.in_string = False
            self.ended = not self._depth
        return place + 1

    def _structure(self, text: str, place: int) -> int:
        place = _OUTSIDE.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess]
        if place == len(text):
            return place
        match text[place]:
            case '"':
                self.in_string = True
            case "[" | "{":
                self._depth += 1
                if self._depth > MAX_DEPTH:
                    raise NotACall(f"it is nested more than {MAX_DEPTH} deep")
            case _:
                self._depth -= 1
                self.ended = not self._depth
        return place + 1


class _WholeEscapes:
    """Passes JSON through, but holds back what may be half an escape or half a surrogate pair."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        if not self._held and "\\u" not in text and not text.endswith("\\"):
            return text
        text = self._held + text
        place = _READY.match(text).end()  # pyright: ignore[reportOptionalMemberAccess]
        self._held = text[place:]
        if len(self._held) > _LONGEST_HELD:
            raise NotACall("its JSON is broken")
        return whole_characters(text[:place])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return whole_characters(held)


_LONGEST_HELD = len(r"\ud83d\ude0")
# The first half of a pair is ready once it can be seen whether its other half follows.
_FIRST_HALF = r"u[dD][89abAB][0-9a-fA-F]{2}"
_READY = re.compile(
    rf"(?:[^\\]++|\\[^u]|\\(?!{_FIRST_HALF})u[0-9a-fA-F]{{4}}"
    rf"|\\{_FIRST_HALF}(?=[^\\]|\\[^u]|\\u[0-9a-fA-F]{{4}}))*+",
    re.DOTALL,
)


def _string(text: str) -> str:
    if not isinstance(value := _read(text), str):
        raise NotACall("its name is not a string")
    return value


def _read(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        raise NotACall("its JSON is broken") from None

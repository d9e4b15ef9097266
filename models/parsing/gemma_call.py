"""A call as Gemma 4 writes it: `call:name{key:value,…}`, with strings between two markers."""

import re
from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto
from typing import Any, cast

from models.conversation import Tool
from models.parsing.call_body import CallBody, NotACall
from models.parsing.calls import CallWriter
from models.parsing.events import Event
from models.parsing.json_text import MAX_DEPTH, inside_string, read_json, write_json

QUOTE = '<|"|>'
_OPENING = "call:"
_MAX_NAME = 300
_WORD_OR_MARK = re.compile(r"([^\s,:{}\[\]]+)|([,:{}\[\]])|\s+")
_WORDS = {
    "none": (None, "null"),
    "null": (None, "null"),
    "true": (True, "true"),
    "false": (False, "false"),
}
# Most numbers, and quick to read.
_SHORT_INTEGER = re.compile(r"-?[1-9][0-9]{0,17}")
_SHORT_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,18}")
# What makes the marker before it the end of a value in an object: the end of that, or the next
# key. Then what may still become one.
_AFTER_VALUE = re.compile(r"\s*(?:\}|,\s*[^\s,:{}\[\]]+\s*:)")
_PERHAPS_AFTER_VALUE = re.compile(r"\s*(?:,\s*(?:[^\s,:{}\[\]]{1,300}\s*)?)?")
_AFTER_ITEM = re.compile(r"\s*[,\]]")
_AFTER_KEY = re.compile(r"\s*:")
_PERHAPS = re.compile(r"\s{0,300}")


class _Expects(Enum):
    NAME = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    NOTHING = auto()


class GemmaCall(CallBody):
    """Strings are told by the marker, so that characters that spell it are text. The marker itself
    ends a string only where another key, or the end of what holds the string, follows."""

    def __init__(self, tools: Sequence[Tool], writer: CallWriter) -> None:
        super().__init__(tools, writer)
        self._expects = _Expects.NAME
        self._read = ""  # of a name or a bare word, which may go on
        self._string: list[str] | None = None  # that is open
        self._after: str | None = None  # what follows the marker that may have ended the string
        self._holders: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str] = []  # of the objects among them
        self._arguments: dict[str, Any] = {}
        self._json: list[str] = []  # that has not been written yet
        self._comma = ""  # before what comes next, if anything does

    @property
    def closable(self) -> bool:
        return self._string is None

    def text(self, text: str) -> Iterator[Event]:
        self._unread.append(text)
        if self._string is not None and self._after is None:
            self._string.append(text)
            yield from self._writer.arguments(inside_string(text))
            return
        yield from self._feed(text)
        yield from self._written()

    def quote(self) -> Iterator[Event]:
        """The marker around strings."""
        self._unread.append(QUOTE)
        if self._string is None:
            self._end_word()
            if self._expects not in (_Expects.KEY, _Expects.VALUE):
                raise NotACall("it has a string where none may be")
            self._string = []
            self._add('"')
        elif self._after is not None and self._after.strip() == ",":  # a key in markers
            yield from self._end_string()
            yield from self.quote()
            return
        else:
            if self._after is not None:
                self._in_string(QUOTE + self._after)
            self._after = ""
        yield from self._written()

    def end(self, *, closed: bool) -> Iterator[Event]:
        if self._after is not None:
            yield from self._end_string()
        if self._expects is not _Expects.NOTHING:
            raise NotACall("it is not complete")
        yield from self._written()
        yield from self._writer.end(self._arguments)
        self._ended()

    def _feed(self, text: str) -> Iterator[Event]:
        if self._string is not None:
            yield from self._feed_string(text)
            return
        place = 0
        if self._expects is _Expects.NAME:
            place = yield from self._name(text, place)
        for found in _WORD_OR_MARK.finditer(text, place):
            word, mark = found.groups()
            if word:
                self._read += word
                continue
            if self._read:
                self._end_word()
            if mark:
                self._between(mark)

    def _feed_string(self, text: str) -> Iterator[Event]:
        if self._after is None:
            self._in_string(text)
            return
        self._after += text
        if self._follows().match(self._after):
            yield from self._end_string()
            return
        perhaps = _PERHAPS if self._in_list or self._is_key else _PERHAPS_AFTER_VALUE
        if not perhaps.fullmatch(self._after):
            self._in_string(QUOTE + self._after)
            self._after = None

    def _follows(self) -> re.Pattern[str]:
        if self._is_key:
            return _AFTER_KEY
        return _AFTER_ITEM if self._in_list else _AFTER_VALUE

    @property
    def _in_list(self) -> bool:
        return isinstance(self._holders[-1], list)

    @property
    def _is_key(self) -> bool:
        return self._expects is _Expects.KEY

    def _in_string(self, text: str) -> None:
        cast(list[str], self._string).append(text)
        self._json.append(inside_string(text))

    def _end_string(self) -> Iterator[Event]:
        string, after = "".join(cast(list[str], self._string)), self._after or ""
        self._string = self._after = None
        self._json.append('"')
        if self._is_key:
            self._end_key(string)
        else:
            self._end_value(string)
        yield from self._feed(after)

    def _name(self, text: str, place: int) -> Generator[Event, None, int]:
        brace = text.find("{", place)
        self._read += text[place:] if brace < 0 else text[place:brace]
        if len(self._read) > _MAX_NAME:
            raise NotACall("it has no name")
        if brace < 0:
            return len(text)
        if not self._read.strip().startswith(_OPENING):
            raise NotACall("it does not begin as a call")
        yield from self._begin(self._read.strip().removeprefix(_OPENING))
        self._read = ""
        self._open(self._arguments)
        return brace + 1

    def _between(self, character: str) -> None:
        if character == "," and self._expects is _Expects.COMMA:
            self._comma = ","
            self._expects = _Expects.VALUE if self._in_list else _Expects.KEY
            return
        match self._expects, character:
            case _Expects.VALUE, "{":
                self._open({})
            case _Expects.VALUE, "[":
                self._open([])
            case _Expects.COLON, ":":
                self._json.append(":")
                self._expects = _Expects.VALUE
            case ((_Expects.KEY | _Expects.COMMA), "}") if not self._in_list:
                self._close("}")
            case ((_Expects.VALUE | _Expects.COMMA), "]") if self._in_list:
                self._close("]")
            case _:
                raise NotACall("its arguments are broken")

    def _end_word(self) -> None:
        word, self._read = self._read, ""
        if not word:
            return
        if self._is_key:
            self._add(write_json(word))
            self._end_key(word)
        elif self._expects is _Expects.VALUE:
            value, json = _value(word)
            self._add(json)
            self._end_value(value)
        else:
            raise NotACall("its arguments are broken")

    def _end_key(self, key: str) -> None:
        self._keys.append(key)
        self._expects = _Expects.COLON

    def _end_value(self, value: Any) -> None:
        holder = self._holders[-1]
        if isinstance(holder, list):
            holder.append(value)
        else:
            holder[self._keys.pop()] = value
        self._expects = _Expects.COMMA

    def _open(self, holder: dict[str, Any] | list[Any]) -> None:
        if len(self._holders) == MAX_DEPTH:
            raise NotACall(f"it is nested more than {MAX_DEPTH} deep")
        self._holders.append(holder)
        self._add("[" if isinstance(holder, list) else "{")
        self._expects = _Expects.VALUE if isinstance(holder, list) else _Expects.KEY

    def _close(self, bracket: str) -> None:
        self._json.append(bracket)
        self._comma = ""
        holder = self._holders.pop()
        if self._holders:
            self._end_value(holder)
        else:
            self._expects = _Expects.NOTHING

    def _add(self, json: str) -> None:
        self._json.append(self._comma + json)
        self._comma = ""

    def _written(self) -> Sequence[Event]:
        json, self._json = "".join(self._json), []
        return self._writer.arguments(json)


def _value(word: str) -> tuple[Any, str]:
    """What a word says, and its JSON."""
    if (found := _WORDS.get(word.lower())) is not None:
        return found
    if _SHORT_INTEGER.fullmatch(word):
        return int(word), word
    if _SHORT_DECIMAL.fullmatch(word):
        return float(word), word
    try:
        return read_json(word), word
    except ValueError:
        # A string that was left without its markers: whoever validates the call may say so.
        return word, write_json(word)

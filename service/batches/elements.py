"""The elements of the list `requests` in a JSON body that is too large to be read at once."""

import json
import re
from collections.abc import Iterator
from typing import IO

from service.errors import ApiError
from service.json_body import object_in

_LIST = "requests"
_READ_BYTES = 1 << 18
_PIECE_BYTES = 1 << 16  # the interpreter lock is held for as long as a match takes
_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+(")?', re.DOTALL)
_MOST_KEY_BYTES = 6 * len(_LIST) + 2  # with each character escaped, and the quotes


class Elements:
    """Iterates over the text of each element, unparsed and in order.

    Brackets, commas and strings are told apart, no more: each element is the caller's to parse,
    and `check_rest` parses what is left of the body without them. One element is in memory at a
    time; one of more than `most_bytes` is refused with 413. Slow: to be used in a thread.
    """

    def __init__(self, body: IO[bytes], most_bytes: int) -> None:
        self._body = body
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._begin: int = 0  # of what belongs to the current element, or to the rest
        self._seen: int = 0
        self._string = -1  # where the string begins that `_seen` is in
        self._rest = bytearray()
        self._name = "the request body"
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        depth, key, inside, first = 0, b"", False, 0
        while token := self._token():
            if token.startswith(b'"'):
                key = token if depth == 1 else key
            elif token in b"[{":
                depth += 1
                if depth == 2 and token == b"[" and _is_name_of_list(key):
                    self._rest += self._taken()
                    self._name, inside, first = f"{_LIST}.{self.count}", True, self.count
            elif inside and depth == 2:  # "," or "]", or a "}" that the rest is refused for
                element = self._taken()[:-1]
                inside = token == b","
                if inside or self.count > first or element.strip():
                    self.count += 1
                    self._name = f"{_LIST}.{self.count}"
                    yield element
                if not inside:
                    self._rest += token
                    self._name = "the request body without its requests"
                    depth -= 1
            elif token in b"]}":
                depth -= 1
        if inside:
            raise ApiError.invalid(f"the request body is not valid JSON: it ends in {self._name}")
        self._rest += self._taken()

    def check_rest(self) -> None:
        """To be called at the end. Raises ApiError unless the rest is an object with the list."""
        rest = object_in(bytes(self._rest), self._name)
        if _LIST not in rest:
            raise ApiError.invalid(f"{_LIST}: Field required")
        if not isinstance(rest[_LIST], list):
            raise ApiError.invalid(f"{_LIST}: Input should be a list")
        if not self.count:
            raise ApiError.invalid(f"{_LIST}: Input should not be empty")

    def _token(self) -> bytes:
        """The next bracket, comma or string (of a long one, the beginning); empty at the end."""
        while True:
            before = self._seen
            if self._string < 0:
                found = _OUTSIDE.search(self._buffer, self._seen)
                self._seen = found.end() if found else len(self._buffer)
                if found and found[0] != b'"':
                    return found[0]
                self._string = found.start() if found else -1
            elif self._ends_string():
                end = min(self._seen, self._string + _MOST_KEY_BYTES)
                token, self._string = bytes(self._buffer[self._string : end]), -1
                return token
            if self._seen in (before, len(self._buffer)) and not self._read():
                return b""

    def _ends_string(self) -> bool:
        """Go on through a string by one piece."""
        end = self._seen + _PIECE_BYTES
        found = _INSIDE.match(self._buffer, self._seen, end)
        assert found is not None
        self._seen = found.end()
        return found[1] is not None

    def _read(self) -> bool:
        del self._buffer[: self._begin]
        self._seen -= self._begin
        self._string = max(self._string - self._begin, -1)
        self._begin = 0
        if len(self._buffer) > self._most_bytes:
            raise ApiError.too_large(
                f"{self._name} is too large: the limit is {self._most_bytes >> 20} MiB"
            )
        more = self._body.read(_READ_BYTES)
        self._buffer += more
        return bool(more)

    def _taken(self) -> bytes:
        taken = bytes(self._buffer[self._begin : self._seen])
        self._begin = self._seen
        return taken


def _is_name_of_list(key: bytes) -> bool:
    try:
        return json.loads(key) == _LIST
    except ValueError:
        return False

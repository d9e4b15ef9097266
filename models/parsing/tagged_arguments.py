"""The arguments of a call whose values stand in tags: raw text, typed and written as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.parsing.calls import CallWriter
from models.parsing.events import Event
from models.parsing.json_text import inside_string, write_json
from models.parsing.typed_values import ABSENT, Parameters


class TaggedArguments:
    """Values that are strings and nothing else are written while they grow, others once they are
    complete."""

    def __init__(self, schema: Mapping[str, Any], writer: CallWriter) -> None:
        self._parameters = Parameters(schema)
        self._writer = writer
        self._values: dict[str, Any] = {}
        self._given = set[str]()
        self._name = ""
        self._is_text = False
        self._raw: list[str] = []

    @property
    def has_any(self) -> bool:
        """Whether a value has begun."""
        return bool(self._given)

    @property
    def expected(self) -> Sequence[str] | None:
        """The parameters that may still come; None if the tool does not say which it has."""
        names = self._parameters.names
        return [each for each in names if each not in self._given] if names else None

    def begin(self, name: str) -> Iterator[Event]:
        """The value of a parameter comes, in pieces."""
        self._given.add(name)
        self._name, self._raw = name, []
        self._is_text = self._parameters.is_text(name)
        if self._is_text:
            yield from self._writer.arguments(self._key() + '"')

    def grow(self, piece: str) -> Sequence[Event]:
        self._raw.append(piece)
        return self._writer.arguments(inside_string(piece)) if self._is_text else ()

    def end_value(self) -> Iterator[Event]:
        raw = "".join(self._raw)
        value = raw if self._is_text else self._parameters.value(self._name, raw)
        if self._is_text:
            yield from self._writer.arguments('"')
        elif value is not ABSENT:
            yield from self._writer.arguments(self._key() + write_json(value))
        if value is not ABSENT:
            self._values[self._name] = value

    def end(self) -> Iterator[Event]:
        """The call is complete."""
        yield from self._writer.arguments("}" if self._values else "{}")
        yield from self._writer.end(self._values)

    def _key(self) -> str:
        return ("," if self._values else "{") + write_json(self._name) + ":"

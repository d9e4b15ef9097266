"""What all wire shapes share: strictness, and unions that are told apart by one field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

# Union members appear in error locations under a name with this mark, so that
# `service.wire.validation` can leave them out: clients know fields, not unions.
MEMBER_MARK = "#"

# As many as the first-party API takes messages; no list has a use for more.
MOST_ITEMS = 100_000


class Shape(BaseModel):
    """A JSON object: no coercion between types, unknown fields kept in `model_extra`.

    An optional field is `T | None = None`: null means absent.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    def as_sent(self) -> dict[str, Any]:
        """The JSON object that it was, its known fields first."""
        names = (*type(self).model_fields, *(self.model_extra or ()))
        return {
            name: _as_sent(getattr(self, name)) for name in names if name in self.model_fields_set
        }


class CacheControl(Shape):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CacheableShape(Shape):
    """A shape that may carry a cache breakpoint."""

    cache_control: CacheControl | None = None


class UncacheableShape(Shape):
    """A block that may not."""

    cache_control: None = None


@dataclass(frozen=True)
class OneOf:
    """Annotates a union of shapes that differ by the literal in their field `key`."""

    key: Literal["type", "role"] = "type"
    # For blocks and tools: where the union stands, so that an error can tell "unknown" from
    # "misplaced".
    place: str | None = None
    # Which member is meant where the field is absent.
    default: str | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        choices: dict[str, CoreSchema] = {}
        for member in cast(tuple[type[Shape], ...], get_args(source)):
            schema = handler.generate_schema(member)
            for name in names_of(member, self.key):
                choices[MEMBER_MARK + name] = schema
        return core_schema.tagged_union_schema(
            choices=cast(dict[Any, CoreSchema], choices),
            discriminator=self._member_of,
            custom_error_type="one_of",
            custom_error_message="Input should be one of the known kinds",
            custom_error_context={
                "key": self.key,
                "place": self.place or "",
                "names": "\n".join(name.removeprefix(MEMBER_MARK) for name in choices),
            },
        )

    def _member_of(self, value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return None
        name = cast(Mapping[str, Any], value).get(self.key)
        if name is None:
            name = self.default
        return MEMBER_MARK + name if isinstance(name, str) else None


@dataclass(frozen=True)
class FirstFault:
    """Annotates a list whose validation ends at its first bad item, or after `MOST_ITEMS`.

    One report is all a client gets, so a list of a million bad items must not cost a million.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = cast(core_schema.ListSchema, handler(source))
        return {**schema, "fail_fast": True, "max_length": MOST_ITEMS}


@dataclass(frozen=True)
class StringOrList:
    """Annotates `str | list[...]`."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        string, items = get_args(source)
        return core_schema.tagged_union_schema(
            choices={
                MEMBER_MARK + "string": handler.generate_schema(string),
                MEMBER_MARK + "list": handler.generate_schema(items),
            },
            discriminator=_string_or_list,
            custom_error_type="string_or_list",
            custom_error_message="Input should be a string or a list of content blocks",
        )


def _as_sent(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_sent(each) for each in cast(list[Any], value)]
    return value.as_sent() if isinstance(value, Shape) else value


def _string_or_list(value: Any) -> str | None:
    if isinstance(value, str):
        return MEMBER_MARK + "string"
    return MEMBER_MARK + "list" if isinstance(value, list) else None


def names_of(shape: type[Shape], key: str = "type") -> tuple[str, ...]:
    """The literals that `shape` allows in its field `key`."""
    return get_args(shape.model_fields[key].annotation)

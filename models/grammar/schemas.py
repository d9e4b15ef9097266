"""JSON Schemas as clients send them, made safe to compile and to validate with."""

from collections.abc import Iterator
from typing import Any, cast

from models.json_pointer import is_pointer, pointed_to

# Far beyond any tool's schema, and cheap to walk. llguidance reads no deeper than 128 levels of
# JSON, of which a schema's level may take two.
MAX_DEPTH = 60
MAX_NODES = 20_000
# How many schemas one value may have to follow through references, and how often these are looked
# up to find that out: `allOf` with two of the same, forty times over, is a trillion.
_MAX_FAN = 2_000
_MAX_STEPS = 200_000

# Where a schema has others: one, a list of them, or a table of them by name.
_ONE = {
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
}
_LIST = {"allOf", "anyOf", "oneOf", "prefixItems"}
_TABLE = {"dependentSchemas", "patternProperties", "properties"}
# What these hold is said of the same value: a loop of them alone would never end.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_ASSERTIONS = {
    "const",
    "dependentRequired",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "type",
    "uniqueItems",
}
# Those that llguidance knows; a format promises nothing, but where it can be kept, it is.
_FORMATS = {
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
}


class SchemaError(Exception):
    """A schema that cannot be used. Says why, in words that follow "its schema"."""


def prepared(schema: Any) -> dict[str, Any]:
    """The schema with what it asserts, and nothing else.

    All that it refers to stands in its `$defs`; references to other documents, to anchors, and
    those that only lead back to themselves ask for nothing. Raises SchemaError.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise SchemaError("is not an object")
    return _Preparation(cast(dict[str, Any], schema)).whole()


def prepared_object(schema: Any) -> dict[str, Any]:
    """As `prepared`, for the arguments of a tool, which are an object. Raises SchemaError."""
    whole = prepared(schema)
    kinds = whole.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise SchemaError(f"must be of type object, not {str(cast(Any, kinds))[:40]}")
    return {**whole, "type": "object"}


class _Preparation:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._nodes = 0
        # Of the references, in our `$defs`; None for those that ask for nothing.
        self._names: dict[str, str | None] = {}
        self._pending: list[str] = []
        self._fans: dict[str, int] = {}
        self._steps = 0

    def whole(self) -> dict[str, Any]:
        self._fan("#", 0)
        whole = self._schema(self._root, 0)
        definitions: dict[str, Any] = {}
        while self._pending:
            reference = self._pending.pop()
            definitions[str(self._names[reference])] = self._schema(self._target(reference), 1)
        return {**whole, "$defs": definitions} if definitions else whole

    def _schema(self, schema: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise SchemaError(f"is nested more than {MAX_DEPTH} deep")
        if self._nodes > MAX_NODES:
            raise SchemaError(f"holds more than {MAX_NODES} schemas")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaError("has a part that is neither an object nor true or false")
        made: dict[str, Any] = {}
        for key, value in _of_2020(cast(dict[str, Any], schema)).items():
            if key in _ONE:
                made[key] = self._schema(value, depth + 1)
            elif key in _LIST:
                made[key] = [self._schema(each, depth + 1) for each in _list(key, value)]
            elif key in _TABLE:
                table = _table(key, value).items()
                made[key] = {name: self._schema(each, depth + 1) for name, each in table}
            elif key == "required":
                made[key] = _names(value)
            elif key in _ASSERTIONS or (
                key == "format" and isinstance(value, str) and value in _FORMATS
            ):
                made[key] = value
            elif key == "$ref" and (name := self._referred(value)):
                made[key] = f"#/$defs/{name}"
        return made

    def _referred(self, reference: Any) -> str | None:
        """The name for what a reference refers to; None if it asks for nothing."""
        if not isinstance(reference, str) or not is_pointer(reference):
            return None
        if reference not in self._names:
            if self._leads_back(reference):
                self._names[reference] = None
            else:
                self._fan(reference, 0)
                self._names[reference] = str(len(self._names))
                self._pending.append(reference)
        return self._names[reference]

    def _leads_back(self, reference: str) -> bool:
        seen, pending = set[str](), [reference]
        while pending:
            for each in self._references(pending.pop()):
                if each == reference:
                    return True
                if each not in seen:
                    seen.add(each)
                    pending.append(each)
        return False

    def _fan(self, reference: str, depth: int) -> int:
        """How many schemas are said of a value by that reference; it leads to no loop, or to one
        that is left out."""
        if reference not in self._fans:
            if depth > MAX_DEPTH:
                raise SchemaError(f"has references that are more than {MAX_DEPTH} deep")
            self._fans[reference] = 0  # what a loop adds
            held = (self._fan(each, depth + 1) for each in self._references(reference))
            self._fans[reference] = 1 + sum(held)
        if self._fans[reference] > _MAX_FAN:
            raise SchemaError("has references that branch out too far")
        return self._fans[reference]

    def _references(self, reference: str) -> list[str]:
        """Those that its target says of the same value."""
        references = list(_references_in_place(self._target(reference)))
        self._steps += 1 + len(references)
        if self._steps > _MAX_STEPS:
            raise SchemaError("has too many references")
        return references

    def _target(self, reference: str) -> Any:
        try:
            return pointed_to(self._root, reference)
        except (LookupError, ValueError):
            raise SchemaError(f"refers to {reference[:80]}, which is not there") from None


def _references_in_place(schema: Any) -> Iterator[str]:
    pending = [schema]
    while pending:
        each = pending.pop()
        if not isinstance(each, dict):
            continue
        each = cast(dict[str, Any], each)
        reference = each.get("$ref")
        if isinstance(reference, str) and is_pointer(reference):
            yield reference
        for key in _IN_PLACE:
            held = each.get(key)
            if isinstance(held, list):
                pending.extend(cast(list[Any], held))
            elif isinstance(held, dict):
                held = cast(dict[str, Any], held)
                pending.extend(held.values() if key in _TABLE else [held])


def _of_2020(schema: dict[str, Any]) -> dict[str, Any]:
    """A tuple as drafts before 2020-12 write it, written as that one does."""
    if not isinstance(schema.get("items"), list):
        return schema
    return {
        **schema,
        "prefixItems": schema["items"],
        "items": schema.get("additionalItems", True),
    }


def _list(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError(f"has a {key} that is not a list")
    return cast(list[Any], value)


def _names(value: Any) -> list[str]:
    if not all(isinstance(each, str) for each in _list("required", value)):
        raise SchemaError("requires what is no name")
    return list(dict.fromkeys(value))


def _table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SchemaError(f"has {key} that are not an object")
    return cast(dict[str, Any], value)

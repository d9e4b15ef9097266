"""A schema of arguments that has what schemas may have (case T04), for grammars and for values."""

from typing import Any

EVERY_KIND_OF_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "v": {"type": ["integer", "null"]},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
        },
        "Loop": {"$ref": "#/$defs/Loop"},
    },
    "properties": {
        "loc": {
            "anyOf": [
                {"type": "object", "properties": {"city": {"type": "string"}}},
                {"type": "object", "properties": {"lat": {"type": "number"}}},
            ]
        },
        "n": {"anyOf": [{"type": "number"}]},
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
        "tree": {"$ref": "#/$defs/Node"},
        "bad": {"$ref": "#/$defs/Loop"},
        "ext": {"$ref": "https://example.org/x.json"},
        "url": {"type": "string", "format": "uri"},
        "when": {"type": "string", "format": "made-up"},
        "k": {"const": 3},
        "e": {"enum": [1, "1", None, True]},
        "any": {},
        "no": False,
        "tup": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    },
}

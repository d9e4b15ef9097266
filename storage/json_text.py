import json
from typing import Any

import orjson


def to_json(value: Any) -> bytes:
    """UTF-8 JSON of any decoded JSON value.

    orjson refuses what a client can send and a record must keep: lone surrogates (written as "?"),
    integers beyond 64 bits, and nesting beyond its limit.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")


def from_json(text: bytes) -> Any:
    """What `to_json` wrote. Raises ValueError for what is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)  # orjson refuses integers of hundreds of digits

import json
import re
from typing import Any

import orjson

# What may be an integer beyond 64 bits, which orjson would read as a double.
_PERHAPS_LARGE = re.compile(rb"[0-9]{20}|-[0-9]{19}")


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
    """What `to_json` wrote, integers exact. Raises ValueError for what is no JSON."""
    return json.loads(text) if _PERHAPS_LARGE.search(text) else orjson.loads(text)

"""The `idempotency-key` header: requests that have the same one are one request."""

from hashlib import sha256
from typing import Any

from werkzeug.datastructures import Headers

from service.errors import ApiError
from storage.json_text import to_json

_MOST_CHARACTERS = 255


def idempotency_key(headers: Headers) -> str | None:
    """Raises ApiError 400 for a key that no database should be asked to keep."""
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= _MOST_CHARACTERS and key.isprintable()):
        raise ApiError.invalid(
            f"idempotency-key: it should have 1 to {_MOST_CHARACTERS} printable characters"
        )
    return key


def digest_of(received: dict[str, Any]) -> str:
    """What tells whether two requests ask the same, be it streamed or not."""
    asked = {name: value for name, value in received.items() if name != "stream"}
    return sha256(to_json(asked)).hexdigest()

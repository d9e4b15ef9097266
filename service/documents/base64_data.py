"""Base64 as RFC 4648 section 4 has it, and nothing else."""

import binascii
import re

from service.errors import ApiError

# Decoding holds the interpreter lock: a piece takes about 2 ms, then the event loop has a turn.
_PIECE_CHARACTERS = 1 << 20


def decoded(data: str, path: str) -> bytes:
    """The bytes that `data` stands for. Slow: to be called off the event loop. Raises ApiError 400
    that says by what it is not base64."""
    fault = _fault(data)
    if fault is None:
        try:
            return b"".join(
                binascii.a2b_base64(data[start : start + _PIECE_CHARACTERS], strict_mode=True)
                for start in range(0, len(data), _PIECE_CHARACTERS)
            )
        except ValueError:  # also of characters that are not ASCII
            fault = "has characters that are not base64"
    raise ApiError.invalid(f"{path}: it {fault}; send the plain base64 of the file's bytes")


def _fault(data: str) -> str | None:
    """What clients get wrong, as far as one can see it without decoding."""
    if not data:
        return "is empty"
    if data.startswith("data:"):
        return "begins like a data URL"
    if re.search(r"\s", data):
        return "has line breaks or spaces in it"
    if "-" in data or "_" in data:
        return "is of the URL-safe alphabet"
    if 0 <= data.find("=") < len(data) - 2:
        return "goes on after its padding"
    if len(data) % 4:
        return "is cut short, or its padding is missing"
    return None

"""Identifiers: a prefix that says what they name, and 24 characters nobody can guess."""

import re
import secrets
import string
from hashlib import sha256

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 24  # 142 bits: unique across restarts and machines without asking anyone
_NUMBERS = len(_ALPHABET) ** _LENGTH
_MESSAGE_ID = re.compile(rf"msg_([0-9A-Za-z]{{{_LENGTH}}})")


def new_suffix() -> str:
    return _suffix(secrets.randbelow(_NUMBERS))  # asks the system once


def call_id(message_id: str, number: int, prefix: str = "toolu") -> str:
    """`toolu_…` of a message's call, counted from 0: as hard to guess as the message's own id, and
    the same when the message is made again."""
    digest = sha256(f"{message_id} {number}".encode()).digest()
    return f"{prefix}_{_suffix(int.from_bytes(digest) % _NUMBERS)}"


def _suffix(number: int) -> str:
    characters: list[str] = []
    for _ in range(_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[index])
    return "".join(characters)


def new_id(prefix: str) -> str:
    """`msg_…`, `run_…`, `req_…`: the part after the prefix is from the system's CSPRNG."""
    return f"{prefix}_{new_suffix()}"


def run_of(message_id: str) -> str | None:
    """The id of the run whose answer a message is: the same but for what is before."""
    found = _MESSAGE_ID.fullmatch(message_id)
    return f"run_{found[1]}" if found else None

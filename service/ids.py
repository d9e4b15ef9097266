"""Identifiers: a prefix that says what they name, and 24 characters nobody can guess."""

import secrets
import string

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 24  # 142 bits: unique across restarts and machines without asking anyone


def new_suffix() -> str:
    number = secrets.randbelow(len(_ALPHABET) ** _LENGTH)  # asks the system once
    characters: list[str] = []
    for _ in range(_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[index])
    return "".join(characters)


def new_id(prefix: str) -> str:
    """`msg_…`, `run_…`, `req_…`: the part after the prefix is from the system's CSPRNG."""
    return f"{prefix}_{new_suffix()}"

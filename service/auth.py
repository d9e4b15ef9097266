"""API keys: who may use a service that is not only for its own machine."""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from service.errors import ApiError

_PREFIX = "mererun-"
_SHA256 = re.compile("[0-9a-f]{64}")


class KeyFileError(Exception):
    """The key file cannot be used. One sentence for people that says what to do."""


@dataclass(frozen=True, slots=True)
class _Key:
    id: str
    sha256: str


class Keys:
    """The keys of one file: `<id> <sha256 of the key>` a line; `#` begins a comment.

    A key has 256 random bits, so that one round of SHA-256 is enough to keep it secret.
    """

    def __init__(self, keys: Iterable[_Key]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """Raises KeyFileError."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"the key file {path} cannot be read: {_why(error)}") from error
        keys: list[_Key] = []
        for number, line in enumerate(lines, 1):
            parts = line.split("#")[0].split()
            if not parts:
                continue
            if len(parts) != 2 or not _SHA256.fullmatch(parts[1]):
                raise KeyFileError(
                    f"line {number} of the key file {path} is not '<id> <sha256>': "
                    "add keys with `mererun keys add`"
                )
            keys.append(_Key(*parts))
        if not keys:
            raise KeyFileError(f"the key file {path} holds no key: run `mererun keys add` first")
        return cls(keys)

    def identify(self, authorization: Iterable[str], api_key: Iterable[str]) -> str:
        """The id of the key in the headers' values. Raises ApiError 401.

        Any good key is enough, whichever header it is in and whatever else is beside it: agents
        send their user's other key along.
        """
        offered = [*api_key, *(_bearer(each) for each in authorization)]
        offered = [each for each in offered if each]
        if not offered:
            raise ApiError.unauthenticated(
                "an API key is required: send it as 'Authorization: Bearer …' or 'x-api-key: …'"
            )
        for each in offered:
            digest = hashlib.sha256(each.encode(errors="surrogateescape")).hexdigest()
            # All are compared, each in constant time: the time taken tells nothing of any key.
            matches = [key.id for key in self._keys if hmac.compare_digest(key.sha256, digest)]
            if matches:
                return matches[0]
        raise ApiError.unauthenticated("the API key is not one of this server's")


def add_key(path: Path) -> tuple[str, str]:
    """Make a key and append its digest to `path` (mode 0600). Returns (id, the key itself).

    The key is nowhere else; it cannot be shown again. Raises KeyFileError.
    """
    key_id, key = f"key_{secrets.token_hex(4)}", _PREFIX + secrets.token_urlsafe(32)
    line = f"{key_id} {hashlib.sha256(key.encode()).hexdigest()}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+") as file:
            file.seek(0)
            written = file.read()
            # An editor may have left the last line open.
            file.write(line if written.endswith("\n") or not written else "\n" + line)
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"the key file {path} cannot be written: {_why(error)}") from error
    return key_id, key


def _bearer(value: str) -> str:
    scheme, _, key = value.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not text"

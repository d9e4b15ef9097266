"""Signatures: whether what a client brings back is what a model here thought, or was made here."""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson

from storage.errors import StorageError

_VERSION = "mererun1"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Genuine:
    """It was thought here: `text`, by `model`, as thinking block `place` of its message. A note
    was no thinking for the model itself, but text that it wrote before a call."""

    text: str
    model: str
    message_id: str
    place: int
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class Foreign:
    """Nothing that this server signed."""


@dataclass(frozen=True, slots=True)
class Altered:
    """It names this server's key, and is not what was signed with it."""


class Signer:
    """Signs with the key of one data folder: HMAC-SHA256 over text, model and position.

    A signature is `mererun1.KEY ID.CLAIMS.MAC`. Its claims are the model, the message, the place
    therein and whether it is a note; where the client is not shown the text, they have that too,
    compressed. A seal is the same over
    the claims of a summary alone.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._prefix = f"{_VERSION}.{hashlib.sha256(b'id ' + key).hexdigest()[:16]}."

    @classmethod
    def open(cls, data_dir: Path) -> Self:
        """With the key of `data_dir`, which is made the first time. Blocks.

        Raises StorageError.
        """
        file = data_dir / "thinking.key"
        try:
            if not file.exists():
                _write(file, secrets.token_bytes(_KEY_BYTES).hex())
            key = bytes.fromhex(file.read_text())
        except OSError as error:
            raise StorageError(
                f"the key {file} could not be read or made: {error.strerror}; make it readable "
                "for this user, or use another --data-dir"
            ) from error
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise StorageError(
                f"the key {file} is damaged: restore it, or remove it for a new one; without it "
                "the thinking in conversations so far is no longer recognised"
            )
        return cls(key)

    def sign(
        self,
        text: str,
        model: str,
        message_id: str,
        place: int,
        *,
        omitted: bool = False,
        is_note: bool = False,
    ) -> str:
        """For the thinking block `place` (from 0) of a message. With `omitted` the block that the
        client gets has no text: then the signature carries it."""
        packed = _encode(zlib.compress(text.encode())) if omitted else None
        claims = orjson.dumps([model, message_id, place, is_note, packed])
        return f"{self._prefix}{_encode(claims)}.{self._mac(claims, '' if omitted else text)}"

    def check(self, thinking: str, signature: str) -> Genuine | Foreign | Altered:
        """What a thinking block that a client brings is worth."""
        if not signature.startswith(self._prefix):
            return Foreign()
        encoded, _, mac = signature.removeprefix(self._prefix).partition(".")
        claims = _decode(encoded)
        if not hmac.compare_digest(
            self._mac(claims, thinking).encode(), mac.encode(errors="replace")
        ):
            return Altered()
        model, message_id, place, is_note, packed = orjson.loads(claims)
        text = thinking if packed is None else zlib.decompress(_decode(packed)).decode()
        return Genuine(text, model, message_id, place, is_note)

    def seal(self, claims: bytes) -> str:
        """A signature of a summary, which the claims tell of."""
        return f"{self._prefix}{_encode(claims)}.{self._seal_mac(claims)}"

    def unsealed(self, signature: str) -> bytes | None:
        """The claims of what was sealed with this key; None for anything else."""
        encoded, _, mac = signature.removeprefix(self._prefix).partition(".")
        claims = _decode(encoded)
        theirs = f"{self._prefix}{_encode(claims)}.{mac}"
        if theirs != signature or not hmac.compare_digest(
            self._seal_mac(claims).encode(), mac.encode(errors="replace")
        ):
            return None
        return claims

    def _seal_mac(self, claims: bytes) -> str:
        # Claims of thinking are a JSON list, so that none of them begins like this.
        return _encode(hmac.digest(self._key, b"seal\0" + claims, "sha256"))

    def _mac(self, claims: bytes, text: str) -> str:
        # Claims are JSON, which has no such byte: where they end is part of what is signed.
        signed = claims + b"\0" + text.encode(errors="surrogatepass")
        return _encode(hmac.digest(self._key, signed, "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Nothing for what `_encode` did not make."""
    with suppress(binascii.Error, ValueError):
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    return b""


def _write(file: Path, text: str) -> None:
    """Appears whole or not at all, for its owner only."""
    partial = file.with_name(file.name + ".tmp")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    partial.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""Files that are frozen: a list beside them has the SHA-256 of each."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_LIST = "SHA256SUMS"


class NotFrozen(Exception):
    """A file is not what it was when it was frozen; the message says which."""


def read_frozen(folder: Path, found: Iterable[str] = ()) -> dict[str, bytes]:
    """All files of the folder's list, by their names in there. Each is read once, and what was
    read is what is compared. All that is `found` must be on the list. Raises NotFrozen."""
    try:
        lines = (folder / _LIST).read_text().splitlines()
        frozen = {name: digest for digest, name in map(str.split, lines)}
        read = {name: (folder / name).read_bytes() for name in {*found, *frozen}}
    except (OSError, ValueError) as error:
        raise NotFrozen(f"the fixtures cannot be read: {error}") from None
    changed = sorted(name for name, data in read.items() if frozen.get(name) != sha256(data))
    if changed:
        raise NotFrozen(f"not as frozen in {_LIST}: {', '.join(changed)}; put the files back")
    return read


def sha256(data: bytes) -> str:
    """As the list has it."""
    return hashlib.sha256(data).hexdigest()

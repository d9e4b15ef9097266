"""The API key of whoever connects, in a file of its own."""

import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path


class OwnKeyError(Exception):
    """The file cannot be used. One sentence for people that says what to do."""


@dataclass(frozen=True, slots=True)
class OwnKey:
    """A key, and the file that it is in and stays in: settings name the file only."""

    path: Path
    key: str = field(repr=False)
    others_can_read: bool

    @classmethod
    def read(cls, path: Path) -> "OwnKey":
        """Raises OwnKeyError for a file that holds anything else than one key."""
        path = path.absolute()
        if not str(path).isprintable():
            raise OwnKeyError(f"the name of the key file {str(path)!a} has strange characters")
        try:
            words = path.read_text("ascii").split()
            others = stat.S_IRWXG | stat.S_IRWXO
            readable = bool(path.stat().st_mode & others)
        except OSError as error:
            raise OwnKeyError(f"the key file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            words, readable = [], False
        if len(words) != 1:
            raise OwnKeyError(
                f"{path} should hold an API key and nothing else, as "
                "`mererun keys add --api-key-file … > FILE` makes it"
            )
        return cls(path, words[0], readable)

    @property
    def command(self) -> str:
        """Prints the key, in a shell."""
        return f"cat {shlex.quote(str(self.path))}"

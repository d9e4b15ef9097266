"""A file of JSON settings that others write, too: read once, and put back whole or not at all."""

import json
import os
import re
import stat
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from service.errors import ApiError
from service.json_body import object_in
from storage.to_disk import sync, sync_folder

_FIRST_INDENT = re.compile(r"\s*\{\r?\n([ \t]+)")


class SettingsFileError(Exception):
    """The file cannot be used. One sentence for people that says what to do."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file in a folder of settings held when it was read; `value` is empty without one."""

    path: Path
    value: Mapping[str, Any]
    _raw: bytes | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises SettingsFileError for what is no JSON object, and for a symbolic link: others
        read what it leads to, and it would be changed, or the link replaced, unasked."""
        for each in (path.parent, path):
            if os.path.islink(each):
                raise SettingsFileError(
                    f"{each} is a symbolic link, to {os.readlink(each)}; what is behind it is left"
                    " alone: put a file or folder of the project's own in its place"
                )
        raw = _bytes_of(path)
        if raw is None:
            return cls(path, {}, None)
        try:
            return cls(path, object_in(raw, str(path)), raw)
        except ApiError as error:
            raise SettingsFileError(f"{error.message}: correct it, nothing was changed") from None

    def write(self, value: Mapping[str, Any]) -> None:
        """Put `value` in its place, indented as it was, with the same mode (0600 if it is new).

        It is on disk when this returns. Raises SettingsFileError where it cannot be written, and
        as `check` does.
        """
        self.check()
        with _faults(self.path, "written"):
            self.path.parent.mkdir(exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            partial = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    os.fchmod(descriptor, self._mode())
                    file.write(self._text(value))
                    file.flush()
                    sync(descriptor)
                self.check()
                partial.replace(self.path)
            finally:
                partial.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    def remove(self) -> None:
        """Raises SettingsFileError as `write` does. A folder that is empty then goes, too."""
        self.check()
        with _faults(self.path, "removed"):
            self.path.unlink(missing_ok=True)
            if not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()

    def check(self) -> None:
        """Raises SettingsFileError if it is read-only, or has changed since it was read."""
        if _bytes_of(self.path) != self._raw:
            raise SettingsFileError(
                f"{self.path} was changed by something else meanwhile; run the command again"
            )
        # It could be replaced all the same, and is not meant to be.
        if not self._mode() & stat.S_IWUSR:
            raise SettingsFileError(f"{self.path} is read-only: make it writable with `chmod u+w`")

    def _mode(self) -> int:
        return 0o600 if self._raw is None else stat.S_IMODE(self.path.stat().st_mode)

    def _text(self, value: Mapping[str, Any]) -> bytes:
        like = (self._raw or b"{}\n").decode()
        indent = _FIRST_INDENT.match(like)
        text = json.dumps(
            value, indent=indent[1] if indent else 2, ensure_ascii=like.isascii() and "\\u" in like
        )
        return (text + "\n" * like.endswith("\n")).encode()


def _bytes_of(path: Path) -> bytes | None:
    with _faults(path, "read"):
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise SettingsFileError(f"{path} is no file: move it away")
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


@contextmanager
def _faults(path: Path, what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsFileError(
            f"{path} cannot be {what} ({error.strerror}): see to it that the folder is yours, "
            "writable, and on a disk with room"
        ) from error

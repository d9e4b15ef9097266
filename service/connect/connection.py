"""The settings of a folder for Claude Code, and what is kept beside them to undo a connection."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from service.connect.changes import Changed, Undo, value_of, with_ours, without_ours
from service.connect.settings_file import SettingsFile, SettingsFileError

SETTINGS = Path(".claude", "settings.local.json")
UNDO = Path(".claude", "mererun-undo.json")
_OURS = re.compile(r"env\.\w+|apiKeyHelper|permissions\.defaultMode")


@dataclass(frozen=True, slots=True)
class Connection:
    """As it was found: `undo` is empty where the folder is not connected."""

    file: SettingsFile
    undo: Undo
    _undo_file: SettingsFile

    @classmethod
    def of(cls, folder: Path) -> "Connection":
        """Raises SettingsFileError for files, and settings in them, that cannot be gone on with."""
        if not os.path.isdir(folder):
            raise SettingsFileError(f"{folder} is no folder: give that of a project as --dir")
        file = SettingsFile.read(folder / SETTINGS)
        for name in ("env", "permissions"):
            if not isinstance(value_of(file.value, name, {}), dict):
                raise SettingsFileError(
                    f"{name} in {file.path} is no object: correct it, nothing was changed"
                )
        undo_file = SettingsFile.read(folder / UNDO)
        try:
            undo = Undo.model_validate(undo_file.value)
        except ValidationError:
            undo = None
        # Nothing else is ever written back: not where somebody else has made the file, either.
        if undo is None or not all(map(_OURS.fullmatch, (*undo.before, *undo.written))):
            raise SettingsFileError(
                f"{undo_file.path} is not as mererun writes it: look what it says, and remove it"
            )
        return cls(file, undo, undo_file)

    @property
    def without(self) -> Changed:
        """What the settings would be, were the folder not connected."""
        return without_ours(self.file.value, self.undo)

    def with_settings(self, wanted: Mapping[str, Any]) -> Changed:
        return with_ours(self.file.value, wanted, self.undo)

    def put(self, changed: Changed) -> None:
        """Write what has changed. At no time is there a setting that could not be undone. Raises
        SettingsFileError."""
        self.file.check()
        if changed.undo.written and changed.undo != self.undo:
            self._undo_file.write(changed.undo.model_dump())
        if not changed.settings and self.file.value:
            self.file.remove()
        elif changed.settings != self.file.value:
            self.file.write(changed.settings)
        if self.undo.written and not changed.undo.written:
            self._undo_file.remove()

"""Reports on disk."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


class CannotWrite(Exception):
    """The message says which file, and why."""


def write_text(path: Path, text: str) -> None:
    """Put a file in place whole, or leave what was there. Raises CannotWrite."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from None


def write_json(path: Path, value: Any) -> None:
    """The same for JSON. Raises CannotWrite."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

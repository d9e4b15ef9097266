"""Reports on disk."""

import json
import os
from pathlib import Path
from typing import Any


class CannotWrite(Exception):
    """The message says which file, and why."""


def check_place(path: Path) -> None:
    """Find out before hours of work whether there is a place for it. Raises CannotWrite."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise CannotWrite(f"{path} cannot be written: give a file in a folder that can be written")


def new_folder(path: Path) -> None:
    """Make a folder, or take one that is empty. Raises CannotWrite."""
    try:
        path.mkdir(exist_ok=True)
        if next(path.iterdir(), None) is not None:
            raise CannotWrite(f"{path} has files in it already: give a new folder")
    except OSError as error:
        raise CannotWrite(f"the folder {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise CannotWrite(f"{path} cannot be written: give a new folder")


def write_text(path: Path, text: str) -> None:
    """Put a file in place whole, or leave what was there. Halves of characters, as names of files
    have them that are no UTF-8, are written as escapes. Raises CannotWrite."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from None


def write_reports(report: Any, json: Path | None, page: Path | None) -> None:
    """Write what it has as JSON and as a page, where there is a place for it. Raises
    CannotWrite."""
    if json:
        write_json(json, report.as_json())
    if page:
        write_text(page, report.as_page())


def write_json(path: Path, value: Any) -> None:
    """The same for JSON, in ASCII: so characters that look alike can be told apart, and halves of
    characters be written at all. Raises CannotWrite."""
    write_text(path, json.dumps(value, indent=2) + "\n")

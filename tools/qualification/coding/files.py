"""Projects as values: the files in them."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

Files = Mapping[str, bytes]
"""By their names in the project, with slashes."""


def read_files(folder: Path) -> Files:
    """All that can be read in there, but for links and what Python keeps for itself."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.parent.name != "__pycache__":
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def write_files(folder: Path, files: Files) -> None:
    """Make the folder, with these in it."""
    folder.mkdir()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

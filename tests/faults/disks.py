"""Disks of the tests' own: small ones that get full, and folders that become read-only."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, mebibytes: int) -> Iterator[None]:
    """A small file system in `folder`, which is made. Skips the test where none can be mounted."""
    folder.mkdir(parents=True)
    _mount(folder, "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0700", "tmpfs")
    try:
        yield
    finally:
        _unmount(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Root may write whatever modes say, but not here. Files that are open stay as they are."""
    _mount(folder, "--bind", "-o", "ro", str(folder))
    try:
        yield
    finally:
        _unmount(folder)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """No byte more fits on the disk of `folder`."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


def _mount(folder: Path, *how: str) -> None:
    done = subprocess.run(["mount", *how, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)

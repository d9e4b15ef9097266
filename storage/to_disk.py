import fcntl
import os
import sys
from pathlib import Path


def sync(descriptor: int) -> None:
    """What was written to an open file is on disk when this returns."""
    if sys.platform == "darwin":  # where fsync does not reach the disk
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """The names in a folder are on disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)

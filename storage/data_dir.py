import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import StorageError


def prepare(path: Path) -> None:
    """Make the data folder (0700) if it is missing; `StorageError` unless it can be written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the data folder {path} could not be made: {error.strerror}; use another --data-dir"
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(
            f"the data folder {path} cannot be read and written; "
            "change its permissions or use another --data-dir"
        )


@contextmanager
def lock(path: Path) -> Generator[None]:
    """Hold the data folder for one service; `StorageError` names the process that has it.

    The kernel drops the lock when the process ends, however it ends. Tools that only look do not
    take it.
    """
    file = path / "service.lock"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(
            f"{file} could not be opened: {error.strerror}; use another --data-dir"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise StorageError(
                f"another mererun (pid {holder}) is using {path}; stop it or use another --data-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


class DataDirLock:
    """The data folder's two doors under one name."""

    prepare = staticmethod(prepare)
    lock = staticmethod(lock)

import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
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
    with ExitStack() as stack:
        try:
            descriptor = os.open(path / "service.lock", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except BlockingIOError:
            holder = (path / "service.lock").read_text() or "unknown"
            raise StorageError(
                f"another mererun (pid {holder}) is using {path}; stop it or use another --data-dir"
            ) from None
        except OSError as error:
            raise StorageError(
                f"{path / 'service.lock'} could not be written: {error.strerror}; "
                "free space, make it writable or use another --data-dir"
            ) from error
        yield

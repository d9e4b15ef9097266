import fcntl
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from storage.errors import StorageError
from storage.owner import is_alive, this_process


@dataclass(frozen=True, slots=True)
class Holder:
    """The service that works on a data folder, and the model that it serves."""

    owner: str
    model: str
    weights_sha256: str | None


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
def lock(path: Path, *, model: str = "", weights_sha256: str | None = None) -> Generator[None]:
    """Hold the data folder for one service; `StorageError` names the process that has it.

    The kernel drops the lock when the process ends, however it ends. Tools that only look do not
    take it.
    """
    me = Holder(this_process(), model, weights_sha256)
    with ExitStack() as stack:
        try:
            descriptor = os.open(_lock_file(path), os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, orjson.dumps(asdict(me)))
        except BlockingIOError:
            named = _named(path)
            pid = named.owner.partition(":")[0] if named else "unknown"
            raise StorageError(
                f"another mererun (pid {pid}) is using {path}; stop it or use another --data-dir"
            ) from None
        except OSError as error:
            raise StorageError(
                f"{_lock_file(path)} could not be written: {error.strerror}; "
                "free space, make it writable or use another --data-dir"
            ) from error
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)


def holder(path: Path) -> Holder | None:
    """The service that holds the data folder now. It looks without touching the lock, which would
    keep a service from starting."""
    named = _named(path)
    return named if named and is_alive(named.owner) else None


def _named(path: Path) -> Holder | None:
    try:
        return Holder(**orjson.loads(_lock_file(path).read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError):
        return None


def _lock_file(path: Path) -> Path:
    return path / "service.lock"

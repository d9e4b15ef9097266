"""Where a pull works until its result is whole: hidden folders inside the models folder.

A model appears under its name by one rename, so a name never shows half a model. One pull works
at a time; what an interrupted one left behind, the next removes.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from models.catalog import CheckpointError
from models.sources.progress import announce

PARTIAL = ".partial-"
# Kept until a later pull finishes it: a hub download of many gigabytes goes on where it stopped.
RESUMABLE = ".resume-"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def one_pull(models_dir: Path) -> Generator[None]:
    """Hold the models folder for one pull; faults of its disk become `CheckpointError`."""
    try:
        models_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        models_dir.mkdir(exist_ok=True)
        with (models_dir / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                announce(f"waiting for another pull into {models_dir}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            # The downloader inherits the lock: should it outlive a killed pull, the next one waits.
            os.set_inheritable(lock.fileno(), True)
            for leftover in models_dir.glob(f"{PARTIAL}*"):
                discard(leftover)
            yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise disk_full(models_dir) from error
        raise CheckpointError(
            f"cannot write {error.filename or models_dir}: {error.strerror or error}; "
            "check its rights or choose another --data-dir"
        ) from error


def disk_full(models_dir: Path) -> CheckpointError:
    return CheckpointError(
        f"the disk that holds {models_dir} is full and nothing was installed: "
        "free some space or choose another --data-dir, then pull again"
    )


@contextmanager
def partial_folder(models_dir: Path, name: str) -> Generator[Path]:
    """A fresh hidden folder, gone at the end however the work ends."""
    folder = models_dir / f"{PARTIAL}{name}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_receipt(folder: Path, facts: dict[str, Any]) -> None:
    """Record beside the weights where they come from and when they came."""
    receipt = {**facts, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    (folder / "receipt.json").write_bytes(orjson.dumps(receipt, option=orjson.OPT_INDENT_2))


def publish(folder: Path, final: Path) -> None:
    """Put a whole model folder under its name, durably; what stood there is replaced."""
    for file in (*folder.iterdir(), folder):
        _sync(file)
    if final.is_symlink() or final.exists():
        retire(final)
    folder.rename(final)
    _sync(final.parent)


def retire(final: Path) -> None:
    """Remove a model so that its name is gone at once, however long its files take."""
    unnamed = final.with_name(f"{PARTIAL}removed-{final.name}")
    final.rename(unnamed)
    discard(unnamed)


def discard(path: Path) -> None:
    """Remove a folder, a file, or a link without what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

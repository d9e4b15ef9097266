"""Services to measure, in processes of their own.

The bench is a developer's tool: it takes the service runner, and the engine without a model, from
the tests.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.catalog import Checkpoint
from tests.support.running import REPOSITORY, Running, real_service, scripted_service

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Places:
    """Where data folders may lie: on the disk of this checkout, and in memory if there is such."""

    disk: Path
    memory: Path | None


@contextmanager
def places() -> Iterator[Places]:
    """Two folders that are removed again."""
    build = REPOSITORY / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=build) as disk:
        if not os.access(_SHARED_MEMORY, os.W_OK):
            yield Places(Path(disk), None)
            return
        with tempfile.TemporaryDirectory(prefix="bench-", dir=_SHARED_MEMORY) as memory:
            yield Places(Path(disk), Path(memory))


def real(checkpoint: Checkpoint, parent: Path, *options: str) -> AbstractContextManager[Running]:
    """`mererun serve` with a fresh data folder below `parent`. `options` are the command's own."""
    return real_service(checkpoint.path, Path(tempfile.mkdtemp(dir=parent)), *options)


def scripted(
    checkpoint: Checkpoint, parent: Path, **settings: Any
) -> AbstractContextManager[Running]:
    """The service over the scripted engine; only the model's tokenizer is used."""
    return scripted_service(checkpoint.path, Path(tempfile.mkdtemp(dir=parent)), **settings)

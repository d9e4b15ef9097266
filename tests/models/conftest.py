from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.models.engine import on_mlx
from tests.models.engine.on_mlx import OnMlx


@pytest.fixture(scope="session")
def mlx() -> Iterator[OnMlx]:
    """Calls a function of `on_mlx` in a process that has MLX, which this one has not."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=on_mlx.start) as executor:
        executor.submit(on_mlx.ready).result()  # now, and not while a test counts processes
        yield lambda function, *arguments: executor.submit(function, *arguments).result()


@pytest.fixture(scope="session")
def chunk(mlx: OnMlx, tiny: Path) -> int:
    """How many tokens the engine prefills in one step."""
    return mlx(on_mlx.facts, tiny)["chunk_tokens"]

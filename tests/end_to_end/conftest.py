"""The service of the real model that can call tools, which takes a while to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lives import assert_stops_well
from tests.support.running import Running, real_service


@pytest.fixture(scope="session")
def qwen_service(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with real_service(qwen, tmp_path_factory.mktemp("data")) as running:
        yield running
        assert_stops_well(running)

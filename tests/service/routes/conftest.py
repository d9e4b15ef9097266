import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.running import Running, scripted_service
from tests.support.tiny_checkpoint import byte_tokenizer


@pytest.fixture(scope="package")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service over the scripted engine for all tests that leave it as it was."""
    with scripted_service(tiny, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def prompt_of(service: Running) -> Callable[[httpx.Response], str]:
    """The prompt that an answer was made from, as its record has it."""
    tokenizer = byte_tokenizer()

    def read(response: httpx.Response) -> str:
        assert response.status_code == 200, response.text
        (file,) = service.data_dir.glob(f"runs/*/*/*/{response.headers['mererun-run']}/prompt.json")
        return tokenizer.decode(json.loads(file.read_text())["ids"], skip_special_tokens=False)

    return read

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from models.catalog import DEFAULT_MODEL
from models.safetensors_file import write_float32
from models.sources import pull
from tests.support.postgres import Server, postgres_server
from tests.support.tiny_checkpoint import write_tiny_checkpoint

TEST_DATA = Path(__file__).parents[1] / "build" / "test-data"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real default model, installed once and kept between runs."""
    return _pulled(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def qwen() -> Path:
    """The folder of the real Qwen2.5 Coder 0.5B, installed once (437 MB) and kept between runs."""
    return _pulled("qwen2.5-coder-0.5b-instruct")


@pytest.fixture(scope="session")
def gemma() -> Path:
    """The folder of the real Gemma 3 270M, for those who say that they accept its terms."""
    if not os.environ.get("MERERUN_ACCEPT_GEMMA_TERMS"):
        pytest.skip(
            "MERERUN_ACCEPT_GEMMA_TERMS is not set: the Gemma Terms of Use were not accepted"
        )
    return _pulled("gemma-3-270m")


def _pulled(name: str) -> Path:
    TEST_DATA.mkdir(parents=True, exist_ok=True)
    with FileLock(TEST_DATA / f"{name}.lock"):  # tests run in several processes
        return pull(name, TEST_DATA / "models", lambda terms, text: True).path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real but tiny random model."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server; tests that use it are skipped where none is installed."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder that has all the files of a model, and no weights in them."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "vocab_size": 300,
        "max_position_embeddings": 128,
        "eos_token_id": 1,
    }
    end = {"id": 2, "content": "<|im_end|>"}
    template = {"chat_template": "{{ messages }}", "eos_token": "<|im_end|>"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [end]}))
    (folder / "tokenizer_config.json").write_text(json.dumps(template))
    write_float32(folder / "model.safetensors", {}, [])
    return folder

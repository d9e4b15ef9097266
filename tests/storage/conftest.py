import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from storage.database import Database
from storage.jobs import Jobs, NewJob


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with Database.open(tmp_path / "mererun.db") as database:
        yield database


@pytest.fixture
def jobs(db: Database) -> Jobs:
    return Jobs(db)


@pytest.fixture
def new_job() -> Callable[..., NewJob]:
    numbers = itertools.count(1)

    def make(**known: Any) -> NewJob:
        number = next(numbers)
        return NewJob(
            **{
                "id": f"run_{number}",
                "message_id": f"msg_{number}",
                "request_id": f"req_{number}",
                "model": "m",
                "streaming": True,
                "api_key": None,
                "record": f"runs/2026/01/01/run_{number}",
                "created_at": time.time(),
                "input_tokens": 5,
                "max_tokens": 16,
                **known,
            }
        )

    return make

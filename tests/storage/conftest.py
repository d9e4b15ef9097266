import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from storage.database import Database
from storage.jobs import Jobs, NewJob
from tests.support.postgres import Server

NewJobs = Callable[..., NewJob]


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database is; what uses it is tested with both kinds."""
    if request.param == "SQLite":
        return tmp_path / "mererun.db"
    server: Server = request.getfixturevalue("postgres")
    return server.empty_queue()


@pytest.fixture
async def db(place: Path | str) -> AsyncIterator[Database]:
    async with Database.open(place) as database:
        yield database


@pytest.fixture
def jobs(db: Database) -> Jobs:
    return Jobs(db)


@pytest.fixture
def new_job() -> NewJobs:
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

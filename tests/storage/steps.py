"""What several tests of the database do."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio

CHILDREN = str(Path(__file__).with_name("children.py"))


def row(id: str = "a") -> dict[str, object]:
    return {
        "id": id,
        "message_id": "m",
        "request_id": "r",
        "state": "queued",
        "model": "m",
        "streaming": True,
        "record": "runs/a",
        "created_at": 1.0,
        "attempt": 0,
        "input_tokens": 1,
        "max_tokens": 1,
    }


async def cancelled_after(steps: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work`, cancelled after that many turns of the loop, as asyncio does or as anyio does."""
    if steps % 2:
        task = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            for _ in range(steps):
                await asyncio.sleep(0)
            group.cancel_scope.cancel()


def start(
    name: str, folder: Path, number: int = 0, place: Path | str | None = None
) -> subprocess.Popen[str]:
    """Let another process do what `children` has under that name."""
    arguments = [name, str(folder), str(number), *([str(place)] if place else [])]
    return subprocess.Popen(
        [sys.executable, CHILDREN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

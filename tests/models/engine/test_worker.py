"""The engine's process tells of its prompt cache."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from models.boundary import Boundary
from models.engine.host import EngineHost
from models.engine.protocol import CacheUse, Finished, Load, Loading, Run
from tests.models.engine.events import prompt_of
from tests.models.engine.on_mlx import run_of

LONG_SECONDS = 30.0


@pytest.mark.anyio
async def test_the_engine_says_first_what_it_has_and_then_what_it_holds(tiny: Path) -> None:
    host = EngineHost(Load(str(tiny), cache_bytes=60_000), stall_seconds=LONG_SECONDS)
    run = run_of(prompt_of(40), 2, boundaries=(Boundary(20, 300), Boundary(90, 300)), scope="a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        with anyio.fail_after(LONG_SECONDS):
            assert await told(host, run) == CacheUse("run_1", 0, 39)
            await holds(host, promises=2, computed=40)
            assert await told(host, replace(run, job="run_2")) == CacheUse("run_2", 39, 39)
            await holds(host, promises=2, computed=41)
            too_long = replace(run, prompt=run.prompt * 5, boundaries=(Boundary(190, 300),))
            assert await told(host, too_long) == CacheUse("run_1", 39, 39)
            await holds(host, promises=2, computed=41 + 160)
        tasks.cancel_scope.cancel()


async def told(host: EngineHost, run: Run) -> object:
    """The first event of a run, which goes on to its end."""
    events = [event async for event in host.generate(run)]
    assert isinstance(events[-1], Finished)
    return next(event for event in events if not isinstance(event, Loading))


async def holds(host: EngineHost, *, promises: int, computed: int) -> None:
    while True:
        cache = host.status.cache
        if cache is not None and cache["tokens"]["computed"] == computed:
            memory = cache["memory"]
            assert 0 < memory["held_bytes"] <= memory["limit_bytes"] == 60_000
            assert memory["promises"] == promises
            return
        await anyio.sleep(0.01)

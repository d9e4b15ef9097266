"""The engine's process, seen from the service: it may fail in any way, and is replaced."""

import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import anyio
import psutil
import pytest

from models.engine.host import WORKER, EngineHost, EngineUnavailable
from models.engine.link import EngineDied, EngineError
from models.engine.protocol import (
    VERSION,
    Finished,
    JobEvent,
    Load,
    Loading,
    Prefill,
    Run,
    Tokens,
    ids_of,
)
from tests.models.engine.on_mlx import OnMlx, greedy, resumed, run_of
from tests.support.messages import body
from tests.support.running import real_service

pytestmark = pytest.mark.anyio

LONG_SECONDS = 120.0
SILENCE_SECONDS = 3.0  # long enough for a Python to start on a busy machine
Lives = Callable[..., tuple[str, ...]]


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    """The command of an engine whose lives go as given."""
    script = str(Path(__file__).with_name("fake_worker.py"))
    return lambda *plans: (sys.executable, script, str(tmp_path / "lives"), ",".join(plans))


@asynccontextmanager
async def hosting(
    command: tuple[str, ...] = WORKER,
    folder: Path = Path("nowhere"),
    stall_seconds: float = LONG_SECONDS,
) -> AsyncIterator[EngineHost]:
    """A host at work; once it has ended, no process of it is left."""
    host = EngineHost(Load(str(folder)), stall_seconds=stall_seconds, command=command)
    before = set(psutil.Process().children())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        with anyio.fail_after(LONG_SECONDS):
            yield host
        tasks.cancel_scope.cancel()
    assert host.status.condition == "stopped"
    assert set(psutil.Process().children()) <= before


async def becomes(host: EngineHost, condition: str) -> None:
    await until(lambda: host.status.condition == condition)


async def until(condition: Callable[[], bool]) -> None:
    """The deadline is `hosting`'s."""
    while not condition():  # noqa: ASYNC110 - seen from outside, where there is no event
        await anyio.sleep(0.01)


async def tokens_of(host: EngineHost, run: Run) -> list[int]:
    """The run's tokens; it must end by length, with exactly as many as it says."""
    events = [event async for event in host.generate(run)]
    *_, last = events
    assert isinstance(last, Finished)
    assert last.reason == "length"
    tokens = [token for event in events if isinstance(event, Tokens) for token in event.ids]
    assert last.stats.generated_tokens == len(tokens)
    return tokens


RUN = run_of([7, 8, 9], 3)


@pytest.mark.parametrize(
    ("life", "why"),
    [
        ("exit-loading", "the engine process ended with status 3"),
        ("killed-loading", "the engine process was ended by SIGKILL"),
        ("garbage-loading", "the engine broke the protocol: an unreadable frame"),
        ("oversized-loading", "the engine broke the protocol: a frame of"),
        ("confused-loading", "the engine sent Cancel"),
        ("refuse", "the model is not to my taste"),
        ("foreign", f"the engine speaks protocol {VERSION + 1}, not {VERSION}"),
        ("silent-loading", "the engine gave no sign while loading"),
    ],
)
async def test_an_engine_that_fails_to_load_is_reported_and_replaced(
    lives: Lives, life: str, why: str
) -> None:
    stall = SILENCE_SECONDS if "silent" in life else LONG_SECONDS
    async with hosting(lives(life, "good"), stall_seconds=stall) as host:
        status = await host.settled()
        assert status.condition == "restarting"
        assert status.error is not None
        assert why in status.error
        assert "\n" not in status.error
        await becomes(host, "ready")
        assert host.status.error is None
        assert host.status.restarts >= 1
        assert await tokens_of(host, RUN) == [0, 1, 2]


async def test_a_run_is_refused_while_the_engine_cannot_load(lives: Lives) -> None:
    async with hosting(lives("refuse")) as host:
        await host.settled()
        with pytest.raises(EngineUnavailable, match="the model is not to my taste"):
            await tokens_of(host, RUN)


async def test_an_engine_that_could_not_load_is_tried_again(lives: Lives) -> None:
    async with hosting(lives("refuse", "good")) as host:
        await host.settled()
        with pytest.raises(EngineUnavailable):
            await tokens_of(host, RUN)
        while host.status.error is not None:  # noqa: ASYNC110 - nobody tells of it
            await anyio.sleep(0.01)
        assert await tokens_of(host, RUN) == [0, 1, 2]


async def test_a_run_that_comes_early_waits_for_the_engine(lives: Lives) -> None:
    async with hosting(lives("good")) as host:
        events = [event async for event in host.generate(RUN)]
        assert isinstance(events[0], Loading)
        assert isinstance(events[-1], Finished)


@pytest.mark.parametrize(
    ("life", "why"),
    [
        ("exit-running", "the engine process ended with status 3"),
        ("killed-running", "the engine process was ended by SIGKILL"),
        ("garbage-running", "the engine broke the protocol: an unreadable frame"),
        ("oversized-running", "the engine broke the protocol: a frame of"),
        ("confused-running", "the engine sent Cancel"),
        ("silent-running", "the engine gave no sign for 3 s"),
    ],
)
async def test_an_engine_that_fails_in_a_run_fails_that_run_alone(
    lives: Lives, life: str, why: str
) -> None:
    stall = SILENCE_SECONDS if "silent" in life else LONG_SECONDS
    async with hosting(lives(life, "good"), stall_seconds=stall) as host:
        with pytest.raises(EngineDied, match=why):
            await tokens_of(host, RUN)
        assert await tokens_of(host, RUN) == [0, 1, 2]
        assert host.status.restarts >= 1
        assert host.status.error is None


async def test_an_engine_that_dies_while_idle_is_replaced(lives: Lives) -> None:
    async with hosting(lives("killed-idle", "good")) as host:
        await until(lambda: host.status.restarts > 0)
        assert await tokens_of(host, RUN) == [0, 1, 2]


async def test_a_run_may_fail_without_costing_the_engine(lives: Lives) -> None:
    async with hosting(lives("fail")) as host:
        for _ in range(2):
            with pytest.raises(EngineError, match="out of wits"):
                await tokens_of(host, RUN)
        assert host.status.condition == "ready"
        assert host.status.restarts == 0


Ask = Callable[[EngineHost, str], Awaitable[None]]
ASKS = (EngineHost.cancel, EngineHost.suspend)


@pytest.mark.parametrize("ask", ASKS)
async def test_what_was_asked_of_a_run_before_it_was_sent_is_of_no_effect(
    lives: Lives, ask: Ask
) -> None:
    """Its reader can think again at the first event."""
    async with hosting(lives("good")) as host:
        await becomes(host, "ready")
        await ask(host, RUN.job)
        assert await tokens_of(host, RUN) == [0, 1, 2]


@pytest.mark.parametrize("ask", ASKS)
async def test_what_was_asked_of_a_run_that_has_ended_does_not_reach_its_next_segment(
    lives: Lives, ask: Ask
) -> None:
    async with hosting(lives("good")) as host:
        for _ in range(3):
            assert await tokens_of(host, RUN) == [0, 1, 2]
            await ask(host, RUN.job)


@pytest.mark.parametrize("awaited", [Prefill, Tokens])
@pytest.mark.parametrize(
    ("ask", "reason"), [(EngineHost.cancel, "cancelled"), (EngineHost.suspend, "suspended")]
)
async def test_a_run_is_interrupted_on_its_way(
    lives: Lives, ask: Ask, reason: str, awaited: type[JobEvent]
) -> None:
    async with hosting(lives("good")) as host:
        events = []
        async for event in host.generate(run_of([7], 10**6)):
            events.append(event)
            if isinstance(event, awaited):
                await ask(host, RUN.job)
        assert events[-1].reason == reason
        assert host.status.condition == "ready"
        assert host.status.restarts == 0


async def test_a_suspended_run_goes_on_in_its_next_segment(lives: Lives) -> None:
    async with hosting(lives("good")) as host:
        first: list[int] = []
        async for event in host.generate(run_of([7], 10**6)):
            if isinstance(event, Tokens):
                first += event.ids
                await host.suspend(RUN.job)
        rest = replace(resumed(RUN, [Tokens(RUN.job, ids_of(first))]), max_tokens=3)
        assert first + await tokens_of(host, rest) == list(range(len(first) + 3))


@pytest.mark.parametrize("ask", ASKS)
async def test_asking_something_of_another_job_changes_nothing(lives: Lives, ask: Ask) -> None:
    async with hosting(lives("good")) as host:
        tokens: list[int] = []
        async for event in host.generate(RUN):
            await ask(host, "some other run")
            tokens += event.ids if isinstance(event, Tokens) else []
        assert tokens == [0, 1, 2]


@pytest.mark.parametrize("ask", ASKS)
async def test_asking_something_of_a_dead_engine_is_no_fault(lives: Lives, ask: Ask) -> None:
    async with hosting(lives("good", "silent-loading")) as host:
        await ask(host, RUN.job)  # there is none yet
        await becomes(host, "ready")
        _kill(host)
        await ask(host, RUN.job)


def _kill(host: EngineHost) -> None:
    """The event loop has no turn meanwhile: the host cannot have noticed."""
    process = psutil.Process(host.status.pid)
    process.kill()
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)


async def test_events_that_nobody_waits_for_cost_the_engine(lives: Lives) -> None:
    async with hosting(lives("good")) as host:
        await becomes(host, "ready")
        first = host.status.pid
        async with aclosing(host.generate(run_of([7], 10**6))) as events:
            async for event in events:
                if isinstance(event, Tokens):
                    break
        assert await tokens_of(host, RUN) == [0, 1, 2]
        assert host.status.pid != first
        assert host.status.restarts == 1


async def test_a_run_that_the_engine_never_took_is_tried_once_more(lives: Lives) -> None:
    async with hosting(lives("killed-taking", "good", "killed-taking")) as host:
        assert await tokens_of(host, RUN) == [0, 1, 2]
    async with hosting(lives("killed-taking")) as host:
        with pytest.raises(EngineDied, match="was ended by SIGKILL"):
            await tokens_of(host, RUN)


async def test_an_engine_that_stops_reading_is_replaced(lives: Lives) -> None:
    more_than_a_socket_holds = Run(RUN.job, 3, 0, 1, 0, 0, (), array("I", bytes(8 << 20)))
    async with hosting(lives("deaf", "good"), stall_seconds=SILENCE_SECONDS) as host:
        assert await tokens_of(host, more_than_a_socket_holds) == [0, 1, 2]
        assert host.status.restarts == 1


async def test_a_host_ends_while_the_engine_does_not_read(lives: Lives) -> None:
    prompt = array("I", bytes(8 << 20))
    async with hosting(lives("deaf")) as host, anyio.create_task_group() as tasks:
        tasks.start_soon(tokens_of, host, Run(RUN.job, 3, 0, 1, 0, 0, (), prompt))
        await becomes(host, "busy")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_real_engine_answers_and_says_what_it_is(mlx: OnMlx, tiny: Path) -> None:
    prompt = list(range(40))
    async with hosting(folder=tiny) as host:
        status = await host.settled()
        assert status.condition == "ready", status.error
        assert status.facts is not None
        assert status.facts["dtype"] == "float32"
        assert status.loaded_bytes == status.total_bytes == status.facts["weights_bytes"] > 0
        assert await tokens_of(host, run_of(prompt, 8)) == mlx(greedy, tiny, prompt, 8)


async def test_a_real_engine_is_cancelled_and_killed_and_answers_again(tiny: Path) -> None:
    endless = run_of(range(40), 10**6)
    async with hosting(folder=tiny) as host:
        events = []
        async for event in host.generate(endless):
            events.append(event)
            if isinstance(event, Tokens):
                await host.cancel(endless.job)
        assert events[-1].reason == "cancelled"
        assert host.status.restarts == 0
        with pytest.raises(EngineDied, match="was ended by SIGKILL"):
            await killed_on_its_way(host, replace(endless, job="run_2"))
        assert len(await tokens_of(host, replace(endless, job="run_3", max_tokens=5))) == 5


async def test_a_real_engine_suspends_a_run_for_another_and_goes_on(mlx: OnMlx, tiny: Path) -> None:
    run = run_of(range(40), 30)
    first: list[int] = []
    async with hosting(folder=tiny) as host:
        async for event in host.generate(run):
            if isinstance(event, Tokens):
                first += event.ids
                await host.suspend(run.job)
        other = await tokens_of(host, run_of(range(7), 3, job="run_2"))
        rest = resumed(run, [Tokens(run.job, ids_of(first))])
        events = [event async for event in host.generate(rest)]
    assert other == mlx(greedy, tiny, range(7), 3)
    assert first + [
        token for event in events if isinstance(event, Tokens) for token in event.ids
    ] == mlx(greedy, tiny, range(40), 30)
    assert events[0] == Prefill(run.job, len(rest.prompt), len(rest.prompt))


async def killed_on_its_way(host: EngineHost, run: Run) -> None:
    async for event in host.generate(run):
        if isinstance(event, Tokens):
            assert host.status.pid is not None
            os.kill(host.status.pid, signal.SIGKILL)


@pytest.fixture
def half_a_model(tiny: Path, tmp_path: Path) -> Path:
    """A folder whose weights are cut short."""
    folder = copytree(tiny, tmp_path / "half")
    os.truncate(folder / "model.safetensors", 10_000)
    return folder


async def test_a_model_that_cannot_be_loaded_is_said_in_one_line(half_a_model: Path) -> None:
    async with hosting(folder=half_a_model) as host:
        error = (await host.settled()).error
    assert error is not None
    assert error.startswith("the model could not be loaded: ")
    assert "\n" not in error


async def test_why_a_model_cannot_be_loaded_is_told_without_its_folder(
    tiny: Path, tmp_path: Path
) -> None:
    folder = copytree(tiny, tmp_path / "none")
    (folder / "config.json").unlink()
    async with hosting(folder=folder) as host:
        error = (await host.settled()).error
    assert error == "the model could not be loaded: No such file or directory"


def test_the_modules_of_the_service_do_not_import_mlx() -> None:
    code = (
        "import sys, service.cli, service.serving, models.families, models.sources\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'mlx', 'mlx_lm'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has mapped")
def test_a_service_at_work_has_no_mlx_and_its_engine_ends_with_it(
    tiny: Path, tmp_path: Path
) -> None:
    with real_service(tiny, tmp_path / "data") as running:
        with running.client() as client:
            request = body("hi", model=tiny.name, max_tokens=4)
            client.post("/v1/messages", json=request).raise_for_status()
        engine = psutil.Process(running.engine_pid())
        assert "libmlx" in maps(engine.pid)
        assert "libmlx" not in maps(running.process.pid)
        running.kill()
        engine.wait(LONG_SECONDS)


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()

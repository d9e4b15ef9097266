"""The engine's process: what it tells, and how it ends."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from models.boundary import Boundary
from models.engine.host import WORKER, EngineHost
from models.engine.protocol import (
    VERSION,
    CacheUse,
    Cancel,
    Failed,
    Finished,
    FrameReader,
    Load,
    Loading,
    Message,
    Run,
    Suspend,
    Tokens,
    encode,
)
from tests.models.engine.events import prompt_of
from tests.models.engine.on_mlx import run_of

LONG_SECONDS = 120.0


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


@contextmanager
def worker(*messages: Message) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A real engine process that has been told `messages`, and the service's end of its socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        descriptor = theirs.fileno()
        process = subprocess.Popen([*WORKER, str(descriptor)], pass_fds=[descriptor])
        theirs.close()
        ours.settimeout(LONG_SECONDS)
        ours.sendall(b"".join(map(encode, messages)))
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


def next_message(connection: socket.socket, frames: FrameReader) -> Message:
    while data := connection.recv(1):
        for message in frames.feed(data):
            return message
    raise AssertionError("the engine hung up")


def test_a_real_engine_refuses_another_version_and_ends(tiny: Path) -> None:
    with worker(Load(str(tiny), VERSION + 1)) as (process, connection):
        refusal = next_message(connection, FrameReader())
        assert refusal == Failed(
            None, f"engine protocol {VERSION} cannot serve protocol {VERSION + 1}"
        )
        assert process.wait(LONG_SECONDS) == 1


def test_a_real_engine_takes_what_came_after_the_run_and_cancels_rather_than_suspends(
    tiny: Path,
) -> None:
    def run(job: str) -> Run:
        return replace(run_of(range(2000), 3), job=job)

    first = (Cancel("a"), run("a"), Suspend("a"), Cancel("a"), Suspend("a"), Cancel("b"))
    with worker(Load(str(tiny)), *first) as (_, connection):
        frames = FrameReader()
        assert next_end(connection, frames) == ("a", "cancelled")
        connection.sendall(b"".join(map(encode, (Cancel("a"), Suspend("a"), run("a")))))
        assert next_end(connection, frames) == ("a", "length")
        connection.sendall(b"".join(map(encode, (run("b"), Suspend("b"), Cancel("a")))))
        assert next_end(connection, frames) == ("b", "suspended")


def next_end(connection: socket.socket, frames: FrameReader) -> tuple[str, str]:
    while not isinstance(message := next_message(connection, frames), Finished):
        pass
    return message.job, message.reason


@pytest.mark.parametrize("awaited", [Loading, Tokens])
def test_a_real_engine_ends_with_its_service(tiny: Path, awaited: type[Message]) -> None:
    endless = run_of(range(2000), 10**6)
    with worker(Load(str(tiny)), endless) as (process, connection):
        frames = FrameReader()
        while not isinstance(next_message(connection, frames), awaited):
            pass
        connection.close()
        assert process.wait(LONG_SECONDS) == 0


def test_a_real_engine_ends_when_it_is_sent_garbage() -> None:
    with worker() as (process, connection):
        connection.sendall(b"\xff" * 64)
        assert process.wait(LONG_SECONDS) == 0

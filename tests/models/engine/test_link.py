"""The socket to an engine process, when that is over while something is being sent."""

import socket
from contextlib import closing
from subprocess import DEVNULL

import anyio
import pytest

from models.engine.link import EngineDied, EngineLink
from models.engine.protocol import Cancel, Run
from tests.models.engine.on_mlx import run_of

pytestmark = pytest.mark.anyio

LARGE = run_of(range(1_000_000), 1)  # more than a socket takes while nobody reads


async def test_who_waits_to_send_learns_of_the_end_and_is_not_in_the_way_of_the_next() -> None:
    """The socket of the next life has the number of the one that was closed."""
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    with closing(theirs):  # it is open elsewhere, too: nothing is told of the end there
        process = await anyio.open_process(["sleep", "100"], stdin=DEVNULL)
        link, told = EngineLink(ours, process), list[EngineDied]()

        async def send(message: Cancel | Run) -> None:
            with pytest.raises(EngineDied) as error:
                await link.send(message)
            told.append(error.value)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, LARGE)
                tasks.start_soon(send, Cancel("run_1"))  # waits for its turn
                await anyio.wait_all_tasks_blocked()
                link.kill()
                await link.close()
                next_ours, next_theirs = socket.socketpair()
                with closing(next_theirs), closing(next_ours):
                    assert next_ours.fileno() == number
                    await EngineLink(next_ours, process).send(Cancel("run_2"))
                    assert b"run_2" in next_theirs.recv(1 << 16)
    assert len(told) == 2
    with pytest.raises(EngineDied):
        await link.send(Cancel("run_3"))

"""The socket to one life of the engine process, as the service sees it."""

import math
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectSendStream

from models.engine.protocol import (
    Failed,
    Finished,
    FrameReader,
    JobEvent,
    Message,
    ProtocolError,
    Run,
    encode,
)

# A little more than a worker takes for its last writes.
_ENDING_SECONDS = 6.0


class EngineError(Exception):
    """The engine gave no answer to a run; the message says why. The next run may succeed."""


class EngineDied(EngineError):
    """The engine process ended, hung or broke the protocol in the middle of the run."""


class EngineLink:
    """Whoever sends or reads over it learns by EngineDied that this life is over."""

    def __init__(self, connection: socket.socket, process: Process) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._process = process
        self._send_lock = anyio.Lock()
        self._job: tuple[str, MemoryObjectSendStream[JobEvent | EngineDied]] | None = None
        self.is_ready = False

    async def send(self, message: Message) -> None:
        data = encode(message)
        async with self._send_lock:
            sent = 0
            try:
                while sent < len(data):
                    await anyio.wait_writable(self._socket)
                    with suppress(BlockingIOError):
                        sent += self._socket.send(memoryview(data)[sent:])
            # Of a socket that is closed: ValueError, or, if that happens meanwhile, the last one.
            except (OSError, ValueError, anyio.ClosedResourceError) as error:
                raise EngineDied("the engine process is gone") from error
            finally:
                if 0 < sent < len(data):  # a frame cut short would garble all that follow
                    self.kill()

    async def messages(self, stall_seconds: float) -> AsyncIterator[Message]:
        """All that the engine says, until it dies: the only way out is EngineDied.

        While loading, silence for `stall_seconds` counts as death; an idle engine may be silent.
        """
        frames = FrameReader()
        while True:
            data = None
            with anyio.move_on_after(math.inf if self.is_ready else stall_seconds):
                data = await self._receive()
            if data is None:
                raise EngineDied(f"the engine gave no sign while loading for {stall_seconds:g} s")
            if not data:
                raise EngineDied(await self._epitaph())
            try:
                for message in frames.feed(data):
                    yield message
            except ProtocolError as error:
                raise EngineDied(f"the engine broke the protocol: {error}") from error

    async def events(self, run: Run, stall_seconds: float) -> AsyncGenerator[JobEvent]:
        # Unbounded in form, bounded in fact: a run has at most max_tokens events, and its reader
        # is the scheduler, never a client.
        sender, receiver = anyio.create_memory_object_stream[JobEvent | EngineDied](math.inf)
        self._job = job = (run.job, sender)
        try:
            silence = EngineDied(f"the engine gave no sign for {stall_seconds:g} s")
            with anyio.move_on_after(stall_seconds) as sending:
                await self.send(run)  # a long prompt waits for the engine to read it
            if sending.cancelled_caught:
                raise silence
            while True:
                event = silence
                with anyio.move_on_after(stall_seconds):
                    event = await receiver.receive()
                if isinstance(event, EngineDied):
                    raise event
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            if self._job is job:  # an iterator may be closed long after another run has begun
                self._job = None
            sender.close()
            receiver.close()

    def deliver(self, event: JobEvent) -> None:
        if self._job is not None and self._job[0] == event.job:
            self._job[1].send_nowait(event)

    def die(self, death: EngineDied) -> None:
        if self._job is not None:
            self._job[1].send_nowait(death)

    async def end(self) -> None:
        """Let a process that has no run end by itself, which it does once all is on disk."""
        if self._job is not None or not self.is_ready:
            return
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with anyio.move_on_after(_ENDING_SECONDS):
            await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """Wait for the killed process to be gone."""
        await self._process.wait()
        # Who waits to send would wait for ever, and in the way of the next life, whose socket has
        # the same number.
        anyio.notify_closing(self._socket)
        self._socket.close()

    async def _receive(self) -> bytes:
        while True:
            try:
                await anyio.wait_readable(self._socket)
                return self._socket.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def _epitaph(self) -> str:
        with anyio.move_on_after(5):
            await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "the engine process hung up"
        if code < 0:
            return f"the engine process was ended by {signal.Signals(-code).name}"
        return f"the engine process ended with status {code}"

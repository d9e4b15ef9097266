"""The service's side of the engine process: start it, feed it, watch it, replace it."""

import logging
import math
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from subprocess import DEVNULL
from typing import Any, Literal

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectSendStream

from models.engine.protocol import (
    VERSION,
    CacheState,
    CacheUse,
    Cancel,
    Failed,
    Finished,
    FrameReader,
    JobEvent,
    Load,
    Loading,
    Message,
    Prefill,
    ProtocolError,
    Ready,
    Run,
    Suspend,
    Tokens,
    encode,
)

logger = logging.getLogger("mererun.engine")

WORKER = (sys.executable, "-m", "models.engine.worker")
_RESTART_DELAYS_SECONDS = (0.0, 1.0, 5.0, 30.0)  # by how often it failed to get ready in a row
# A little more than a worker takes for its last writes.
_ENDING_SECONDS = 6.0

Condition = Literal["loading", "ready", "busy", "restarting", "stopped"]


class EngineError(Exception):
    """The engine gave no answer to a run; the message says why. The next run may succeed."""


class EngineUnavailable(EngineError):
    """There is no engine, and the last try to start one failed. The run has not begun."""


class EngineDied(EngineError):
    """The engine process ended, hung or broke the protocol in the middle of the run."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What is known of the engine, for `/v1/runtime` and `/healthz`."""

    condition: Condition
    pid: int | None = None
    loaded_bytes: int = 0
    total_bytes: int = 0
    load_seconds: float | None = None
    facts: dict[str, Any] | None = None
    restarts: int = 0
    error: str | None = None
    cache: dict[str, Any] | None = None


class EngineHost:
    """One engine process at a time, each told to `load`, and replaced whenever it ends. One run at
    a time."""

    def __init__(
        self, load: Load, *, stall_seconds: float, command: Sequence[str] = WORKER
    ) -> None:
        self._load = load
        self._command = command
        self._stall_seconds = stall_seconds
        self.status = EngineStatus("loading")
        self._link: _Link | None = None
        self._changed = anyio.Event()
        self._alive = anyio.CancelScope()

    async def run(self) -> None:
        """Keep an engine alive until stopped or cancelled."""
        failures = 0
        try:
            with self._alive:
                while True:
                    if await self._live():
                        failures = 0
                    delay = _RESTART_DELAYS_SECONDS[min(failures, len(_RESTART_DELAYS_SECONDS) - 1)]
                    failures += 1
                    self._set(condition="restarting", restarts=self.status.restarts + 1, pid=None)
                    await anyio.sleep(delay)
        finally:
            self._set(condition="stopped", pid=None)

    def stop(self) -> None:
        """End the engine for good; a run that is going on fails with EngineDied."""
        self._alive.cancel()

    async def settled(self, progress: Callable[[EngineStatus], None] | None = None) -> EngineStatus:
        """Wait until the first load has succeeded or failed; `progress` is told how far it is."""
        while self.status.condition == "loading":
            await self._changed.wait()
            if progress is not None:
                progress(self.status)
        return self.status

    async def generate(self, run: Run) -> AsyncGenerator[Loading | JobEvent]:
        """The run's events: `Loading` while there is no engine yet, `Prefill`, `Tokens`, and
        `Finished` last. Only one run may be going on.

        Raises EngineUnavailable when there is no engine and none can be started, EngineDied when
        it ended in the middle, and else EngineError. To stop a run, `cancel` or `suspend` it and
        read on; an iterator closed before its end costs the engine process, since nobody is left
        to see the run come to rest.
        """
        for last_try in (False, True):
            begun = False
            try:
                async with aclosing(self._generate(run)) as events:
                    async for event in events:
                        begun = begun or not isinstance(event, Loading)
                        yield event
                return
            except EngineDied:
                # An engine that was dead before it took the run is no reason to fail the run.
                if begun or last_try:
                    raise

    async def _generate(self, run: Run) -> AsyncGenerator[Loading | JobEvent]:
        async for loading in self._until_ready():
            yield loading
        assert self._link is not None
        link, finished = self._link, False
        self._set(condition="busy")
        try:
            async with aclosing(link.events(run, self._stall_seconds)) as events:
                async for event in events:
                    finished = isinstance(event, Finished | Failed)
                    if isinstance(event, Failed):
                        raise EngineError(event.message)
                    yield event
        finally:
            if not finished:
                self._abandon(link)
            elif self._link is link:
                self._set(condition="ready")

    async def cancel(self, job: str) -> None:
        """Ask the engine to stop `job`; its events then end with `Finished`.

        Of no effect when the job is not running, so whoever reads its events should think again
        at the first of them. When there is no engine, they get one more `Loading` for that.
        """
        await self._tell(Cancel(job))

    async def suspend(self, job: str) -> None:
        """As `cancel`, but the engine keeps what it has computed, for a run that goes on there."""
        await self._tell(Suspend(job))

    async def _tell(self, message: Cancel | Suspend) -> None:
        if self._link is None:
            self._set()
        else:
            with suppress(EngineDied):
                await self._link.send(message)

    async def _until_ready(self) -> AsyncIterator[Loading]:
        while self._link is None:
            if self.status.error is not None and self.status.condition == "restarting":
                raise EngineUnavailable(self.status.error)
            yield Loading(self.status.loaded_bytes, self.status.total_bytes)
            await self._changed.wait()

    async def _live(self) -> bool:
        """One life of the engine process. True if it got as far as being ready."""
        try:
            link = await self._start()
        except OSError as error:  # for want of memory, processes or descriptors
            self._set(error=f"the engine process could not be started: {error.strerror or error}")
            logger.error("%s", self.status.error)
            return False
        death = EngineDied("the engine was stopped")
        try:
            await self._serve(link)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await link.end()
            raise
        except EngineDied as reason:
            death = reason
            logger.warning("%s", death)
            if not link.is_ready:
                self._set(error=str(death))
        finally:
            self._abandon(link)
            link.die(death)
            with anyio.CancelScope(shield=True):
                await link.close()
        return link.is_ready

    async def _start(self) -> "_Link":
        ours, theirs = socket.socketpair()
        with ExitStack() as unless_started, theirs:
            unless_started.callback(ours.close)
            process = await anyio.open_process(
                [*self._command, str(theirs.fileno())],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=None,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the service, which then ends the engine
            )
            unless_started.pop_all()
        self._set(condition="loading", pid=process.pid, loaded_bytes=0, total_bytes=0, cache=None)
        return _Link(ours, process)

    def _abandon(self, link: "_Link") -> None:
        """End this engine; from now on no run begins on it."""
        if self._link is link:
            self._link = None
            self._set(condition="restarting")
        link.kill()

    async def _serve(self, link: "_Link") -> None:
        await link.send(self._load)
        async for message in link.messages(self._stall_seconds):
            match message:
                case Loading(done, total):
                    self._set(loaded_bytes=done, total_bytes=total)
                case Ready(load_seconds, facts, version):
                    if version != VERSION:
                        raise EngineDied(f"the engine speaks protocol {version}, not {VERSION}")
                    self._link, link.is_ready = link, True
                    self._set(condition="ready", load_seconds=load_seconds, facts=facts, error=None)
                case Failed(None, text):
                    raise EngineDied(text)
                case CacheState(facts):
                    self._set(cache=facts)
                case CacheUse() | Prefill() | Tokens() | Finished() | Failed():
                    link.deliver(message)
                case _:
                    raise EngineDied(f"the engine sent {type(message).__name__}")

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)
        self._changed.set()
        self._changed = anyio.Event()


class _Link:
    """The socket to one life of the engine process."""

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
            except (OSError, ValueError) as error:  # the latter of a socket that is closed
                raise EngineDied(f"the engine process is gone ({error})") from error
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

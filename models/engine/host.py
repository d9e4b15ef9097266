"""The service's side of the engine process: start it, feed it, watch it, replace it."""

import logging
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from subprocess import DEVNULL
from typing import Any, Literal

import anyio

from models.engine.link import EngineDied, EngineError, EngineLink
from models.engine.protocol import (
    VERSION,
    CacheState,
    CacheUse,
    Cancel,
    Failed,
    Finished,
    JobEvent,
    Load,
    Loading,
    Prefill,
    Ready,
    Run,
    Suspend,
    Tokens,
)

logger = logging.getLogger("mererun.engine")

WORKER = (sys.executable, "-m", "models.engine.worker")
_RESTART_DELAYS_SECONDS = (0.0, 1.0, 5.0, 30.0)  # by how often it failed to get ready in a row

Condition = Literal["loading", "ready", "busy", "restarting", "stopped"]


class EngineUnavailable(EngineError):
    """There is no engine, and the last try to start one failed. The run has not begun."""


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
        self._link: EngineLink | None = None
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

    async def _start(self) -> EngineLink:
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
        return EngineLink(ours, process)

    def _abandon(self, link: EngineLink) -> None:
        """End this engine; from now on no run begins on it."""
        if self._link is link:
            self._link = None
            self._set(condition="restarting")
        link.kill()

    async def _serve(self, link: EngineLink) -> None:
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

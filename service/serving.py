"""The service's life: start in order, serve, and end in order."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import hypercorn.asyncio
import orjson
from anyio import to_thread
from hypercorn import Config

from models.catalog import Checkpoint, resolve
from models.engine.host import WORKER, EngineStatus
from models.families import family_of
from service.app import create_app
from service.auth import Keys
from service.core import Core
from service.descriptors import allow_descriptors
from service.errors import ApiError
from service.housekeeping import Housekeeping
from service.listener import listen, url_of
from service.load_progress import load_progress
from service.memory import give_back_freed_memory
from service.scheduling.live_job import Ending
from service.settings import LOOPBACK_HOSTS, Settings
from storage import data_dir
from storage.database import Database
from storage.jobs import JobState

logger = logging.getLogger("mererun")

_SHUTTING_DOWN = ApiError.overloaded("the service is shutting down; send the request again", 10)
# What is left after the drain: telling readers, closing records, ending the engine.
_LAST_SECONDS = 1.8
# What the event loop may take to end when all is closed but connections nobody reads.
_CLOSED_SECONDS = 0.2


class StartError(Exception):
    """The service cannot start. One sentence for people that says what to do."""


async def serve(
    settings: Settings,
    announce: Callable[[str, Checkpoint], None],
    *,
    engine_command: Sequence[str] = WORKER,
) -> None:
    """Serve until SIGTERM or SIGINT. `announce(url, checkpoint)` is called once, when ready.

    Raises StartError, CheckpointError, KeyFileError, ListenError, StorageError; whatever was
    begun is undone then.
    """
    if settings.host not in LOOPBACK_HOSTS and settings.api_key_file is None:
        raise StartError(
            f"refusing to serve on {settings.host} without keys, since anyone who reaches it could "
            "use it: add --api-key-file (see `mererun keys add`) or use --host 127.0.0.1"
        )
    keys = Keys.read(settings.api_key_file) if settings.api_key_file else None
    data_dir.prepare(settings.data_dir)
    checkpoint = resolve(settings.model, settings.models_dir)
    family = await to_thread.run_sync(family_of, checkpoint)
    await to_thread.run_sync(give_back_freed_memory)  # that reading the tokenizer took
    allow_descriptors(settings.queue_limit)
    async with AsyncExitStack() as stack:
        stack.enter_context(
            data_dir.lock(
                settings.data_dir,
                model=checkpoint.id,
                weights_sha256=checkpoint.weights_sha256,
            )
        )
        listeners = [stack.enter_context(each) for each in listen(settings)]
        if settings.ready_file is not None:
            stack.enter_context(_ready_file(settings.ready_file))
        db = await stack.enter_async_context(Database.open(settings.database))
        core = Core.of(settings, checkpoint, family, db, engine_command)
        housekeeping = Housekeeping(core)
        await housekeeping.at_start()
        url = url_of(listeners[0])
        shutdown = Shutdown(core)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(core.engine.run)
            tasks.start_soon(core.scheduler.run)
            tasks.start_soon(core.cancellation.run)
            tasks.start_soon(housekeeping.run)
            tasks.start_soon(shutdown.on_signals)
            tasks.start_soon(_announce_when_ready, core, url, announce, shutdown)
            # From here on it is hypercorn's to close.
            descriptors = [each.detach() for each in listeners]
            await _serve_http(create_app(core, keys), descriptors, shutdown)
            tasks.cancel_scope.cancel()
        if shutdown.start_error is not None:
            raise shutdown.start_error
    _exit_for_certain(_CLOSED_SECONDS)


class Shutdown:
    """Ends the service in order, within the drain time and a moment more.

    New requests are refused at once; those that are in may finish during the drain; then the rest
    are told, and their jobs are interrupted. A second signal ends the drain.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._begun = False
        self._done = anyio.Event()
        self._drain = anyio.CancelScope()
        self.start_error: StartError | None = None

    async def done(self) -> None:
        await self._done.wait()

    async def on_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                async for _ in signals:
                    if not self._begun:
                        tasks.start_soon(self.run, self._core.settings.drain_seconds)
                    else:
                        self._drain.cancel()

    async def run(self, drain_seconds: float) -> None:
        core = self._core
        core.admission.open = False
        _exit_for_certain(drain_seconds + _LAST_SECONDS, 0 if self.start_error is None else 2)
        self._begun = True
        self._drain.deadline = anyio.current_time() + drain_seconds
        await core.scheduler.leave_background()
        with self._drain:
            await core.scheduler.idle()
        with anyio.move_on_after(_LAST_SECONDS / 3):
            await core.scheduler.interrupt_all(Ending(JobState.INTERRUPTED, _SHUTTING_DOWN))
            await core.scheduler.idle()
        core.engine.stop()  # a step that takes longer than that is not waited for
        with anyio.move_on_after(_LAST_SECONDS / 6):
            await core.scheduler.idle()
        self._done.set()


async def _serve_http(app: Any, descriptors: list[int], shutdown: Shutdown) -> None:
    config = Config()
    config.bind = [f"fd://{each}" for each in descriptors]
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = 75  # clients end theirs sooner, so none sends into one that ends
    config.graceful_timeout = 0.2  # the drain has been ours; what is left then reads no more
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            # In a task of its own: it leaves its task marked as being cancelled.
            await cast(Any, hypercorn.asyncio).serve(app, config, shutdown_trigger=shutdown.done)
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        await shutdown.done()
        # From Python 3.12 on hypercorn waits for clients that never leave.
        await anyio.sleep(2 * config.graceful_timeout)
        tasks.cancel_scope.cancel()


async def _announce_when_ready(
    core: Core, url: str, announce: Callable[[str, Checkpoint], None], shutdown: Shutdown
) -> None:
    with load_progress(core.checkpoint.id) as progress:
        status = await core.engine.settled(progress)
    try:
        if status.condition == "ready":
            if core.settings.ready_file is not None:
                await to_thread.run_sync(_write_ready_file, core.settings.ready_file, url)
            _warn_of_slow_blas(status)
            announce(url, core.checkpoint)
        elif status.error is not None:
            raise StartError(status.error)
    except StartError as error:
        shutdown.start_error = error
        await shutdown.run(0)


def _warn_of_slow_blas(status: EngineStatus) -> None:
    facts = status.facts or {}
    if facts.get("device") == "cpu" and facts.get("blas") is None:
        logger.warning(
            "no OpenBLAS was found, and without it prompts take some 60 times as long: "
            "install libopenblas0-pthread (Debian) or your system's OpenBLAS, then start again"
        )


@contextmanager
def _ready_file(path: Path) -> Generator[None]:
    """That of an earlier service would be believed; one that cannot be written is refused now."""
    try:
        with _ready_file_faults(path):
            path.unlink(missing_ok=True)
            _partial(path).touch()
        yield
    finally:
        for file in (path, _partial(path)):
            with suppress(OSError):
                file.unlink()


def _write_ready_file(path: Path, url: str) -> None:
    """Appears whole: whoever waits for it may read it at once."""
    with _ready_file_faults(path):
        _partial(path).write_bytes(orjson.dumps({"url": url, "pid": os.getpid()}))
        _partial(path).replace(path)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


@contextmanager
def _ready_file_faults(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(
            f"the ready file {path} cannot be written: {error.strerror}; "
            "choose another --ready-file"
        ) from error


def _exit_for_certain(seconds: float, code: int = 0) -> None:
    """A client that never reads can hold the event loop's own end for ever. By then the database
    and the records are closed, and the engine notices that its socket is."""
    watchdog = threading.Timer(seconds, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()

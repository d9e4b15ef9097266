"""The engine process: one resident model, one job at a time, one thread that touches MLX.

Started by the engine host with the number of an inherited socket. It ends when that socket does,
whatever it is doing: no engine outlives its service. If it has nothing to do, it first writes what
waits for the disk, which takes a few seconds at most.
"""

import os
import queue
import socket
import sys
import threading
import time
import traceback
from importlib.metadata import version
from pathlib import Path

from models.engine import blas
from models.engine.protocol import (
    VERSION,
    CacheState,
    Cancel,
    Failed,
    Finished,
    FrameReader,
    Interruption,
    Load,
    Loading,
    Message,
    Ready,
    Run,
    Suspend,
    encode,
)

_LAST_WRITES_SECONDS = 5.0
_PROGRESS_STEPS = 100  # at most so many `Loading` messages


class Link:
    """The worker's end of the socket: a reader thread in, direct writes out."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.inbox: queue.SimpleQueue[Load | Run | None] = queue.SimpleQueue()  # None is the end
        self._job: str | None = None  # of the latest run
        self._interruption: Interruption | None = None
        self._is_busy = True  # until it is ready, and while it runs a job
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def send(self, message: Message) -> None:
        if isinstance(message, Ready | Finished | Failed):
            self._is_busy = False
        try:
            self._socket.sendall(encode(message))
        except OSError:
            os._exit(0)  # the service has gone

    def interruption(self) -> Interruption | None:
        """What the run that is going on was asked to do."""
        return self._interruption

    def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := self._socket.recv(1 << 16):
                for message in frames.feed(data):
                    self._take(message)
            if not self._is_busy:
                self.inbox.put(None)
                time.sleep(_LAST_WRITES_SECONDS)
        finally:
            # No teardown: MLX may be in the middle of a step on the other thread.
            os._exit(0)

    def _take(self, message: Message) -> None:
        match message:
            case Run():
                # The run before has ended. What this job was asked before now was meant for an
                # earlier segment of it.
                self._job, self._interruption, self._is_busy = message.job, None, True
                self.inbox.put(message)
            case Cancel(job) if job == self._job:
                self._interruption = "cancelled"
            case Suspend(job) if job == self._job:
                self._interruption = self._interruption or "suspended"
            case Load():
                self.inbox.put(message)
            case _:
                pass


def main() -> None:
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    load = link.inbox.get()
    assert isinstance(load, Load)
    if load.version != VERSION:
        link.send(Failed(None, f"engine protocol {VERSION} cannot serve protocol {load.version}"))
        return
    in_use = blas.preload()
    # Only now, since a BLAS must be loaded before MLX is.
    from models.engine.generate import ResidentModel

    started = time.perf_counter()
    try:
        model = ResidentModel(
            Path(load.folder),
            _reporter(link),
            load.cache_bytes,
            speculates=load.speculates,
            drafter=None if load.drafter is None else Path(load.drafter),
        )
        model.warm_up()
        if load.cache_folder is not None:
            model.keep_on_disk(Path(load.cache_folder), load.cache_disk_bytes, load.weights)
    except Exception as error:
        traceback.print_exc()
        link.send(Failed(None, f"the model could not be loaded: {_one_line(error)}"))
        return
    facts = {
        "device": model.device,
        "dtype": model.dtype,
        "stored_as": model.stored_as,
        "weights_bytes": model.size_bytes,
        "prefill_chunk_tokens": model.chunk_tokens,
        "speculates": model.speculation is not None,
        "drafter": model.drafter_facts,
        "blas": in_use if model.device == "cpu" else None,
        "mlx": version("mlx"),
        "kernels": model.kernels,
    }
    link.send(Ready(time.perf_counter() - started, facts))
    link.send(CacheState(model.settle()))
    while isinstance(run := link.inbox.get(), Run):
        try:
            link.send(model.run(run, link.send, link.interruption))
        except Exception as error:
            traceback.print_exc()
            link.send(Failed(run.job, f"the engine failed: {_one_line(error)}"))
        link.send(CacheState(model.settle()))
    model.close()
    os._exit(0)  # without teardown, as ever


def _reporter(link: Link):
    sent = -1

    def report(done: int, total: int) -> None:
        nonlocal sent
        step = done * _PROGRESS_STEPS // max(total, 1)
        # What comes after the last byte is told, too, since silence would mean that it hangs.
        if step > sent or done == total:
            sent = step
            link.send(Loading(done, total))

    return report


def _one_line(error: Exception) -> str:
    """For clients, so without the path of a file; the traceback in the log has all."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return " ".join((text or "").split()) or "the service's log says how"


if __name__ == "__main__":
    main()
    # Reached when the engine could not start. No teardown: MLX may abort in its own.
    os._exit(1)

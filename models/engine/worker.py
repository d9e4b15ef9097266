"""The engine process: one resident model, one job at a time, one thread that touches MLX.

Started by the engine host with the number of an inherited socket. It ends when that socket does,
whatever it is doing: no engine outlives its service.
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
    Cancel,
    Failed,
    FrameReader,
    Load,
    Loading,
    Message,
    Ready,
    Run,
    encode,
)

_PROGRESS_STEPS = 100  # at most so many `Loading` messages


class Link:
    """The worker's end of the socket: a reader thread in, direct writes out."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.inbox: queue.SimpleQueue[Load | Run] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def send(self, message: Message) -> None:
        try:
            self._socket.sendall(encode(message))
        except OSError:
            os._exit(0)  # the service has gone

    def is_cancelled(self, job: str) -> bool:
        return job in self._cancelled

    def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := self._socket.recv(1 << 16):
                for message in frames.feed(data):
                    if isinstance(message, Cancel):
                        self._cancelled.add(message.job)
                    elif isinstance(message, Load | Run):
                        if isinstance(message, Run):  # then no other run is going on
                            self._cancelled = self._cancelled & {message.job}
                        self.inbox.put(message)
        finally:
            # No teardown: MLX may be in the middle of a step on the other thread.
            os._exit(0)


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
        model = ResidentModel(Path(load.folder), _reporter(link))
        model.warm_up()
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
        "blas": in_use if model.device == "cpu" else None,
        "mlx": version("mlx"),
    }
    link.send(Ready(time.perf_counter() - started, facts))
    while True:
        run = link.inbox.get()
        assert isinstance(run, Run)
        try:
            link.send(model.run(run, link.send, lambda job=run.job: link.is_cancelled(job)))
        except Exception as error:
            traceback.print_exc()
            link.send(Failed(run.job, f"the engine failed: {_one_line(error)}"))


def _reporter(link: Link):
    sent = -1

    def report(done: int, total: int) -> None:
        nonlocal sent
        step = done * _PROGRESS_STEPS // max(total, 1)
        if step > sent:
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

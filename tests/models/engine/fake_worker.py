"""An engine process that lives as it is told, for tests of the host.

Arguments: a file that counts its lives, how each life goes (comma-separated; the last one stands
for all that follow), and the host's socket. A life is "good", or one of those matched below, or a
fate and when it strikes, such as "killed-running".
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from models.engine.protocol import (
    VERSION,
    Cancel,
    Failed,
    Finished,
    Load,
    Loading,
    Prefill,
    Ready,
    Run,
    Stats,
    Tokens,
    encode,
    ids_of,
)
from models.engine.worker import Link


def main() -> None:
    lives, plan, descriptor = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
    with lives.open("a") as file:
        file.write(".")
    life = min(lives.stat().st_size, len(plan)) - 1
    _Life(socket.socket(fileno=descriptor), plan[life]).go()


class _Life:
    def __init__(self, connection: socket.socket, plan: str) -> None:
        self.socket, self.plan = connection, plan

    def go(self) -> None:
        if self.plan == "deaf":  # ready, and then reads nothing any more
            self.socket.sendall(encode(Ready(0.0, {})))
            _for_ever()
        self.link = Link(self.socket)
        assert isinstance(self.link.inbox.get(), Load)
        self.link.send(Loading(1, 2))
        self._fate("loading")
        match self.plan:
            case "refuse":
                self.link.send(Failed(None, "the model is not to my taste"))
                _for_ever()
            case "foreign":
                self.link.send(Ready(0.0, {}, VERSION + 1))
        self.link.send(Ready(0.5, {"device": "fake"}))
        self._fate("idle")
        while isinstance(run := self.link.inbox.get(), Run):
            self._run(run)

    def _run(self, run: Run) -> None:
        def finish(reason: Any, generated: int) -> None:
            stats = Stats(prefilled_tokens=len(run.prompt), generated_tokens=generated)
            self.link.send(Finished(run.job, reason, stats))

        self._fate("taking")
        self.link.send(Prefill(run.job, len(run.prompt), len(run.prompt)))
        self.link.send(Tokens("some other run", ids_of([99])))
        self._fate("running")
        if self.plan == "fail":
            return self.link.send(Failed(run.job, "out of wits"))
        for generated in range(run.max_tokens):
            if interruption := self.link.interruption():
                return finish(interruption, generated)
            self.link.send(Tokens(run.job, ids_of([run.first_index + generated])))
            time.sleep(0.001)
        return finish("length", run.max_tokens)

    def _fate(self, when: str) -> None:
        fate, _, its_hour = self.plan.partition("-")
        match fate if its_hour == when else None:
            case "exit":
                os._exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "garbage":
                self.socket.sendall(b"\x04\0\0\0\0\0\0\0spam")
                _for_ever()
            case "oversized":
                self.socket.sendall(b"\xff" * 8)
                _for_ever()
            case "silent":
                _for_ever()
            case "confused":
                self.link.send(Cancel("run_1"))


def _for_ever() -> None:
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()

"""An engine process that dies when a file tells it to, in place of one of its messages.

Arguments: the engine's module, the file, and what the host adds. The file says `kind number
times`: it dies in place of the message of that kind with that number, counted from the moment that
the file is there; and so does the next process, so many times.
"""

import importlib
import os
import signal
import sys
from pathlib import Path

from models.engine import worker
from models.engine.protocol import Message


class _Death:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._sent = 0

    def may_come(self, message: Message) -> None:
        try:
            kind, number, times = self._file.read_text().split()
        except FileNotFoundError:
            self._sent = 0
            return
        self._sent += type(message).__name__ == kind
        if self._sent == int(number):
            if times == "1":
                self._file.unlink()
            else:
                self._file.write_text(f"{kind} {number} {int(times) - 1}")
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    module, file, descriptor = sys.argv[1:]
    death, send = _Death(Path(file)), worker.Link.send

    def may_die(link: worker.Link, message: Message) -> None:
        death.may_come(message)
        send(link, message)

    worker.Link.send = may_die
    sys.argv[1:] = [descriptor]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()

"""How long a service keeps others waiting, measured from outside.

Another process asks `GET /healthz` all the time over one connection. What it waits for an answer is
the event loop's lag, and the noise of the machine.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tools.bench.client import Client

_EVERY_SECONDS = 0.005
POLLED = f"GET /healthz every {1000 * _EVERY_SECONDS:g} ms from another process"


@contextmanager
def polling(url: str) -> Iterator[list[float]]:
    """The waits in milliseconds, complete after the block."""
    waits: list[float] = []
    command = [sys.executable, "-m", "tools.bench.polling", url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield waits
        process.stdin.close()
        waits.extend(json.loads(process.stdout.readline()))


def main() -> None:
    """Poll until the input ends."""
    client, waits = Client(sys.argv[1]), []
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    client.get("/healthz")
    print("polling", flush=True)
    while not ended.wait(_EVERY_SECONDS):
        started = time.perf_counter()
        client.get("/healthz")
        waits.append(1000 * (time.perf_counter() - started))
    print(json.dumps(waits), flush=True)


if __name__ == "__main__":
    main()

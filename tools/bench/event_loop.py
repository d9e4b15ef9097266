"""How long the service keeps others waiting while it counts a huge prompt.

Measured from outside: another process asks `GET /healthz` all the time over one connection. What
it waits for an answer is the event loop's lag, and the noise of the machine; the same poll of an
idle service shows how much is noise.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from models.catalog import Checkpoint
from tools.bench.client import Client
from tools.bench.figure import Bar, Figure
from tools.bench.prompts import words
from tools.bench.services import Places, scripted

_TOKENS = 100_000
_EVERY_SECONDS = 0.005


def event_loop(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Delays of an idle service, and of one that counts 100,000 tokens."""
    times = 2 if quick else 20
    with scripted(checkpoint, places.disk) as service:
        client = Client(service.url)
        body, tokens = _body_of(client)
        started = time.perf_counter()
        with _polling(service.url) as counting:
            for _ in range(times):
                client.post("/v1/messages/count_tokens", body)
        seconds = time.perf_counter() - started
        with _polling(service.url) as idle:
            time.sleep(seconds)
    how = f"GET /healthz every {1000 * _EVERY_SECONDS:g} ms from another process"
    counted = f"{how}, {len(counting)} times during {times} counts of {tokens} tokens"
    yield Figure("longest wait while counting", max(counting), "ms", counted, Bar("<", 50))
    yield Figure("p99 wait while counting", _p99(counting), "ms", "the same polls")
    yield Figure("longest wait while idle", max(idle), "ms", f"{how}, {len(idle)} times: noise")
    yield Figure("p99 wait while idle", _p99(idle), "ms", "the same polls")


def _body_of(client: Client) -> tuple[bytes, int]:
    """A request of at least that many tokens, whatever the tokenizer."""
    count = _TOKENS
    while True:
        body = json.dumps(
            {"model": "claude-bench", "messages": [{"role": "user", "content": words(count, 0)}]}
        ).encode()
        tokens: int = client.post("/v1/messages/count_tokens", body)["input_tokens"]
        if tokens >= _TOKENS:
            return body, tokens
        count = count * _TOKENS // tokens + 1


@contextmanager
def _polling(url: str) -> Iterator[list[float]]:
    """The waits in milliseconds, complete after the block."""
    waits: list[float] = []
    command = [sys.executable, "-m", "tools.bench.event_loop", url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield waits
        process.stdin.close()
        waits.extend(json.loads(process.stdout.readline()))


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1]


def main() -> None:
    """Poll until the input ends."""
    import threading

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

"""What a batch of 10,000 requests costs while it is created: memory, time, and others' waiting."""

import json
import random
import time
from collections.abc import Iterator

import psutil

from models.catalog import Checkpoint
from tools.bench.client import Client, Stream
from tools.bench.figure import Bar, Figure, p99
from tools.bench.polling import POLLED, polling
from tools.bench.prompts import words
from tools.bench.resident import watching
from tools.bench.services import Places, scripted

_MIB = 1 << 20
_WORDS = 150, 450  # 1 to 3 KB
_HOLDS_THE_ENGINE = {
    "model": "claude-bench",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": json.dumps({"say": "", "then": "wait"})}],
}


def batch(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """One create, while another job has the engine: none of the batch's begins meanwhile."""
    count = 1000 if quick else 10_000
    body = _body(count)
    with scripted(checkpoint, places.disk) as service:
        process = psutil.Process(service.process.pid)
        with (
            Stream(service.url, _HOLDS_THE_ENGINE),
            polling(service.url) as waits,
            watching(process) as resident,
        ):
            started = time.perf_counter()
            created = Client(service.url).post("/v1/messages/batches", body)
            seconds = time.perf_counter() - started
    if created["request_counts"]["processing"] != count:
        raise RuntimeError(f"the batch has other requests: {created['request_counts']}")
    sent = f"{count} requests of 1 to 3 KB, {len(body) / _MIB:.1f} MiB in one create"
    yield Figure(
        "memory while a batch is created",
        (max(resident) - resident[0]) / _MIB,
        "MiB",
        f"the most over what the service had before, {resident[0] / _MIB:.0f} MiB; {sent}",
        Bar("<", 128),
    )
    yield Figure("a batch, created", seconds, "s", f"client wall; {sent}")
    yield Figure(
        "longest wait while a batch is created",
        max(waits),
        "ms",
        f"{POLLED}, {len(waits)} times; p99 {p99(waits):.3g} ms",
    )


def _body(count: int) -> bytes:
    chance = random.Random(0)
    requests = [
        {
            "custom_id": f"request-{number}",
            "params": {
                "model": "claude-bench",
                "max_tokens": 64,
                "messages": [
                    {"role": "user", "content": words(chance.randint(*_WORDS), seed=number)}
                ],
            },
        }
        for number in range(count)
    ]
    return json.dumps({"requests": requests}).encode()

"""How long the service keeps others waiting while it counts a huge prompt.

The same poll of an idle service shows how much is noise.
"""

import json
import time
from collections.abc import Iterator

from models.catalog import Checkpoint
from tools.bench.client import Client
from tools.bench.figure import Bar, Figure, p99
from tools.bench.polling import POLLED, polling
from tools.bench.prompts import words
from tools.bench.services import Places, scripted

_TOKENS = 100_000


def event_loop(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Delays of an idle service, and of one that counts 100,000 tokens."""
    times = 2 if quick else 20
    with scripted(checkpoint, places.disk) as service:
        client = Client(service.url)
        body, tokens = _body_of(client)
        started = time.perf_counter()
        with polling(service.url) as counting:
            for _ in range(times):
                client.post("/v1/messages/count_tokens", body)
        seconds = time.perf_counter() - started
        with polling(service.url) as idle:
            time.sleep(seconds)
    counted = f"{POLLED}, {len(counting)} times during {times} counts of {tokens} tokens"
    yield Figure("longest wait while counting", max(counting), "ms", counted, Bar("<", 50))
    yield Figure("p99 wait while counting", p99(counting), "ms", "the same polls")
    yield Figure("longest wait while idle", max(idle), "ms", f"{POLLED}, {len(idle)} times: noise")
    yield Figure("p99 wait while idle", p99(idle), "ms", "the same polls")


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

"""The first token of a long prompt: new, kept in memory, and kept on disk over a restart."""

import json
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from models.catalog import Checkpoint
from tests.support.running import Running
from tools.bench.client import Stream
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import Prompts, request
from tools.bench.services import Places, real

_PROMPT_TOKENS = 4096
_FEW_TOKENS = 4  # a first one may show nothing yet
_DISK_GIB = "4"
_PATIENCE_SECONDS = 120


def first_token(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Seconds from the request to the first text, over HTTP, as ratios."""
    prompts = Prompts(checkpoint)
    tokens, times = (1024, 1) if quick else (_PROMPT_TOKENS, 3)
    texts = [prompts.of_length(tokens, seed) for seed in range(times)]
    with real(checkpoint, places.disk, "--cache-disk-gib", _DISK_GIB) as service:
        _first_text(service, prompts.of_length(100, times), read=False)  # the service is warm then
        cold = [_first_text(service, text, read=False) for text in texts]
        _wait_for_disk(service, times + 1)  # writing takes the processor, too
        warm = [_first_text(service, text, read=True) for text in texts]
        service.stop()
        service.start()
        _first_text(service, prompts.of_length(100, times + 1), read=False)
        disk = [_first_text(service, text, read=True) for text in texts]
    for where, seconds, bar in (("memory", warm, 40), ("disk after a restart", disk, 15)):
        yield Figure(
            f"{checkpoint.id}: cold / from {where}",
            median(one / other for one, other in zip(cold, seconds, strict=True)),
            "x",
            f"first text of {tokens} tokens over HTTP, {times} prompts, median ratio; seconds: "
            f"cold {centre(cold)}, again {centre(seconds)}",
            Bar(">=", bar),
        )


def _first_text(service: Running, text: str, *, read: bool) -> float:
    asked = {**request(text, _FEW_TOKENS), "cache_control": {"type": "ephemeral"}}
    first: float | None = None
    usage: dict[str, Any] = {}
    with Stream(service.url, asked) as stream:
        for now, event in stream:
            match event["type"]:
                case "message_start":
                    usage = event["message"]["usage"]
                case "content_block_delta" | "message_delta":  # the end, if it says nothing
                    first = first or now - stream.started
                case "error":
                    raise RuntimeError(f"the service failed: {json.dumps(event['error'])}")
                case _:
                    pass
    if (usage["cache_read_input_tokens"] > 0) != read:
        raise RuntimeError(f"what was read from the cache is not as expected: {usage}")
    if first is None:
        raise RuntimeError("an answer had no end")
    return first


def _wait_for_disk(service: Running, files: int) -> None:
    folder = service.data_dir / "prompt-cache"
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(list(folder.glob("*/*.safetensors"))) - len(list(folder.glob("incoming/*"))) < files:
        if time.monotonic() > deadline:
            raise RuntimeError("the states of the prompts were not written")
        time.sleep(0.05)

"""What a job costs besides the engine, and how often it waits for the disk."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from models.catalog import Checkpoint
from tools.bench.client import Client, Stream
from tools.bench.figure import Bar, Figure, centre
from tools.bench.fsync_trace import traced, waits_between
from tools.bench.services import Places, scripted

_REQUEST = {
    "model": "claude-bench",
    "max_tokens": 1,
    "messages": [{"role": "user", "content": json.dumps({"say": "ok"})}],
}
_BODY = json.dumps(_REQUEST).encode()
_WARM_UP = 5
_BLOCK = 20
_MOST_WAITS = 3


def job_cost(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """The cost of one buffered job with an instant answer of one token, and its disk waits."""
    count = 20 if quick else 200
    on_disk, in_memory, fsyncs = _in_turns(checkpoint, places, count)
    disk = 1000 * median(on_disk)
    if in_memory:
        yield Figure(
            "a job, around the engine",
            1000 * median(in_memory),
            "ms",
            f"client wall, data folder in memory: no disk waits; "
            f"{_milliseconds(in_memory)} of {count} in sequence",
            Bar("<=", 10),
        )
    yield Figure(
        "a job, disk waits included", disk, "ms", f"data folder on disk; {_milliseconds(on_disk)}"
    )
    yield Figure(
        "one fsync",
        1000 * median(fsyncs),
        "ms",
        f"4 KiB in a new file, same disk; {_milliseconds(fsyncs)}",
    )
    if shutil.which("strace"):
        yield from _counted_waits(checkpoint, places, 5 if quick else 30)
    elif in_memory:
        yield Figure(
            "disk waits of a job",
            (median(on_disk) - median(in_memory)) / median(fsyncs),
            "",
            "estimate, since there is no strace: (job on disk - job in memory) / one fsync",
            Bar("<=", _MOST_WAITS),
        )


def _in_turns(
    checkpoint: Checkpoint, places: Places, count: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of jobs on disk, of jobs in memory, and of fsyncs on the disk.

    In turns of `_BLOCK`: what another process pushes out of the caches is not the service's cost.
    """
    on_disk: list[float] = []
    in_memory: list[float] = []
    fsyncs: list[float] = []
    with ExitStack() as stack:
        disk = Client(stack.enter_context(scripted(checkpoint, places.disk)).url)
        memory = None
        if places.memory is not None:
            memory = Client(stack.enter_context(scripted(checkpoint, places.memory)).url)
        for _ in range(_WARM_UP):
            _job(disk)
            if memory is not None:
                _job(memory)
        for _ in range(count // _BLOCK):
            on_disk += [_job(disk) for _ in range(_BLOCK)]
            if memory is not None:
                in_memory += [_job(memory) for _ in range(_BLOCK)]
            fsyncs += [_fsync(places.disk / "fsync") for _ in range(_BLOCK)]
    return on_disk, in_memory, fsyncs


def _job(client: Client) -> float:
    started = time.perf_counter()
    answer = client.post("/v1/messages", _BODY)
    seconds = time.perf_counter() - started
    assert answer["usage"]["output_tokens"] == 1
    return seconds


def _fsync(path: Path) -> float:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(file, bytes(4096))
        started = time.perf_counter()
        os.fsync(file)
        return time.perf_counter() - started
    finally:
        os.close(file)
        path.unlink()


def _counted_waits(checkpoint: Checkpoint, places: Places, count: int) -> Iterator[Figure]:
    """Streamed, so that the first event and the first text part the time of a job."""
    spans: list[tuple[float, float, float, float]] = []
    log = places.disk / "fsyncs"
    with scripted(checkpoint, places.disk) as service, traced(service.process.pid, log):
        for _ in range(_WARM_UP + count):
            times: dict[str, float] = {}
            begun = time.time()
            with Stream(service.url, _REQUEST) as stream:
                for _, event in stream:
                    times.setdefault(event["type"], time.time())
            spans.append((begun, times["message_start"], times["content_block_delta"], time.time()))
    spans = spans[_WARM_UP:]
    whole = [waits_between(log, begun, ended) for begun, _, _, ended in spans]
    running = [waits_between(log, started, text) for _, started, text, _ in spans]
    yield Figure(
        "disk waits of a job",
        median(whole),
        "",
        f"strace: fsyncs from request to end, those at the same time counted once; {centre(whole)} "
        f"of {count} streamed jobs",
        Bar("<=", _MOST_WAITS),
    )
    yield Figure(
        "disk waits before the first token",
        max(running),
        "",
        "the same jobs, from message_start to the first text; the most of any",
        Bar("<=", 0),
    )


def _milliseconds(seconds: list[float]) -> str:
    return f"median {centre([1000 * each for each in seconds])}"

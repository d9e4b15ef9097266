"""What clients that wait in the queue cost the service."""

import json
import selectors
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil

from models.catalog import Checkpoint
from tools.bench.figure import Bar, Figure
from tools.bench.services import Places, scripted

_MIB = 1 << 20
_PING_SECONDS = 1.0
_PINGS_EACH = 3
_PATIENCE_SECONDS = 120


def queued_streams(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Memory of the service when idle, and with many streams behind a job that never ends."""
    count = 20 if quick else 200
    with scripted(checkpoint, places.disk, ping_seconds=_PING_SECONDS) as service:
        process = psutil.Process(service.process.pid)
        idle = process.memory_info().rss
        most = max(_hold_streams(service.url, count, process))
    yield Figure(
        "service, idle",
        idle / _MIB,
        "MiB",
        "resident memory of the HTTP process, ready",
        Bar("<=", 150),
    )
    yield Figure(
        f"{count} queued streams",
        (most - idle) / _MIB,
        "MiB",
        f"the most over idle until each has had {_PINGS_EACH} pings",
        Bar("<", 64),
    )


def _hold_streams(url: str, count: int, process: psutil.Process) -> Iterator[int]:
    """Open the streams and read them; the resident memory now and again."""
    address = urlsplit(url)
    with selectors.DefaultSelector() as selector:
        for _ in range(count + 1):  # the first one takes the engine
            connection = socket.create_connection((address.hostname, address.port))
            connection.sendall(_request())
            selector.register(connection, selectors.EVENT_READ, bytearray())
            yield process.memory_info().rss
        waiting = {key.fd for key in selector.get_map().values()}
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while waiting:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(waiting)} streams had too few pings")
            for key, _ in selector.select(_PING_SECONDS):
                assert isinstance(key.fileobj, socket.socket)
                received = key.fileobj.recv(1 << 16)
                if not received:
                    raise RuntimeError(f"the service closed a stream:\n{key.data.decode()}")
                key.data.extend(received)
                if key.data.count(b"event: ping") >= _PINGS_EACH:
                    waiting.discard(key.fd)
            yield process.memory_info().rss
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def _request() -> bytes:
    script = json.dumps({"say": "", "then": "hang"})
    body = json.dumps(
        {
            "model": "claude-bench",
            "max_tokens": 64,
            "stream": True,
            "messages": [{"role": "user", "content": script}],
        }
    ).encode()
    return (
        b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )

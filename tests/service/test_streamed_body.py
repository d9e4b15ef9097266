"""Of a large body no more is taken from the network than whoever reads it keeps up with."""

from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config
from quart import Quart, request

from service.streamed_body import PIECE_BYTES, PacedConnection, pieces, requests_limited

pytestmark = pytest.mark.anyio

CHUNK = bytes(1 << 16)
CHUNKS = 100


def scope(path: str) -> Any:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "extensions": {},
    }


@pytest.mark.parametrize(("path", "taken_unread"), [("/large", 16), ("/other", CHUNKS)])
async def test_a_large_body_waits_for_its_reader(path: str, taken_unread: int) -> None:
    app = Quart("test")
    app.request_class = requests_limited({("POST", "/large"): CHUNKS * len(CHUNK)})
    app.asgi_http_class = PacedConnection
    taken, sizes = 0, list[int]()

    async def receive() -> Any:
        nonlocal taken
        if taken == CHUNKS:
            await anyio.sleep_forever()
        taken += 1
        return {"type": "http.request", "body": CHUNK, "more_body": taken < CHUNKS}

    async def send(event: Any) -> None:
        assert event.get("status") in (200, None)

    @app.post("/<path>")
    async def handler(path: str) -> str:
        await anyio.wait_all_tasks_blocked()
        assert taken == taken_unread
        async for piece in pieces(request):
            sizes.append(len(piece))
            await anyio.wait_all_tasks_blocked()
        return "read"

    await app(scope(path), receive, send)
    assert sum(sizes) == CHUNKS * len(CHUNK)
    if path == "/large":
        assert max(sizes) < 2 * PIECE_BYTES


@pytest.mark.parametrize("path", ["/large", "/other"])
async def test_who_sends_on_after_the_answer_is_not_kept_waiting(path: str) -> None:
    """By the real server, whose queue is full by the time of the answer."""
    app = Quart("test")
    app.request_class = requests_limited({("POST", "/large"): 1 << 30})
    app.asgi_http_class = PacedConnection

    @app.post("/<path>")
    async def handler(path: str) -> tuple[str, int]:
        await anyio.sleep(0.3)
        return "too large", 413

    config = Config()
    config.bind = ["127.0.0.1:0"]
    sockets = config.create_sockets()
    config.create_sockets = lambda: sockets
    (listener,) = sockets.insecure_sockets
    listener.listen()
    ended = anyio.Event()
    body = bytes(64 << 20)  # more than any buffer on the way has room for
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(serve, app, config, shutdown_trigger=ended.wait))
        async with await anyio.connect_tcp(*listener.getsockname()) as client:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            with anyio.fail_after(20), suppress(anyio.BrokenResourceError):
                await client.send(head.encode() + body)
        ended.set()

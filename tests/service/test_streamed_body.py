"""Of a large body no more is taken from the network than whoever reads it keeps up with."""

from typing import Any

import anyio
import pytest
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

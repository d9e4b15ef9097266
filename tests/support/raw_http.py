"""Requests as raw bytes, for what client libraries would tidy up or refuse to send."""

import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """Has the names that `httpx` gives them. Header names are in lower case."""

    status_code: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    url: str, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b""
) -> Answer:
    """Send one request and read one answer. There is no header but those given."""
    lines = [
        f"{method} {path} HTTP/1.1".encode(),
        *(b": ".join(each) for each in headers),
        b"",
        b"",
    ]
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), _SECONDS) as connection:
        connection.sendall(b"\r\n".join(lines) + body)
        with connection.makefile("rb") as file:
            return _answer(file, method)


def post(
    url: str,
    path: str,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    content_type: bytes = b"application/json",
) -> Answer:
    """A POST with the usual headers, and those given (a `Host` among them replaces the usual)."""
    given = headers or []
    usual = [
        (b"Content-Type", content_type),
        (b"Content-Length", str(len(body)).encode()),
    ]
    if not any(name.lower() == b"host" for name, _ in given):
        usual.append((b"Host", b"localhost"))
    return request(url, "POST", path, [*usual, *given], body)


def _answer(file: Any, method: str) -> Answer:
    status = int(file.readline().split()[1])
    headers: dict[str, str] = {}
    while line := file.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = b"" if method == "HEAD" else file.read(int(headers.get("content-length", 0)))
    return Answer(status, headers, body)

"""A blocking HTTP client that costs little and notes when each thing came."""

import http.client
import json
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

_TIMEOUT_SECONDS = 600


class Client:
    """One keep-alive connection to a service."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS
        )

    def get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path, None)

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"content-type": "application/json"} if body else {}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{method} {path} was answered {response.status}: {text.decode()}")
        return json.loads(text)


class Stream:
    """A streamed answer over a connection of its own, which the block's end closes."""

    def __init__(self, url: str, request: dict[str, Any]) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS
        )
        self._connection.connect()
        body = json.dumps({**request, "stream": True}).encode()
        self.started = time.perf_counter()
        self._connection.request("POST", "/v1/messages", body, {"content-type": "application/json"})
        self._response = self._connection.getresponse()
        if self._response.status != 200:
            raise RuntimeError(f"the request was refused: {self._response.read().decode()}")
        self.run_id = self._response.headers["mererun-run"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Each event and when it came, as `time.perf_counter` says it."""
        while line := self._response.readline():
            if line.startswith(b"data: "):
                now = time.perf_counter()
                yield now, json.loads(line.removeprefix(b"data: "))

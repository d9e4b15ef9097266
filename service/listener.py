"""The listening sockets, bound before anything slow begins."""

import errno
import socket
from contextlib import suppress
from typing import Any

from service.settings import Settings

_LOCAL = ("127.0.0.1", "localhost")
_OTHER = {
    socket.AF_INET: (socket.AF_INET6, "::1"),
    socket.AF_INET6: (socket.AF_INET, "127.0.0.1"),
}
_OWN_ADDRESS: dict[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ListenError(Exception):
    """The address cannot be listened on. One sentence for people that says what to do."""


def listen(settings: Settings) -> list[socket.socket]:
    """Bind host and port (0 takes a free one). Raises ListenError.

    A client may take `localhost` for 127.0.0.1 or for ::1, so the service is at both, where there
    is a second one and nobody else has its port.
    """
    try:
        info = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listeners = [_bound(info[0], info[4], settings)]
    except OSError as error:
        advice = (
            "stop what uses it or choose another --port (0 takes a free one)"
            if error.errno == errno.EADDRINUSE
            else "choose another --host or --port"
        )
        raise ListenError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            f"{advice}"
        ) from error
    if settings.host in _LOCAL:
        family, host = _OTHER[info[0]]
        with suppress(OSError):
            port = listeners[0].getsockname()[1]
            listeners.append(_bound(family, (host, port), settings))
    return listeners


def _bound(family: int, address: Any, settings: Settings) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_lost_peers(listener, settings.peer_timeout_seconds)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """As seen from this machine: no client can connect to a wildcard address."""
    host, port = listener.getsockname()[:2]
    host = str(_OWN_ADDRESS.get(host, host))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _notice_lost_peers(listener: socket.socket, seconds: int) -> None:
    """Connections inherit these: a peer that vanished, or stopped reading, is noticed.

    Without them a client that lost its power holds the engine until its answer is complete.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(seconds // 2, 1)),
        ("TCP_KEEPALIVE", max(seconds // 2, 1)),  # macOS's name for the same
        ("TCP_KEEPINTVL", max(seconds // 6, 1)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)

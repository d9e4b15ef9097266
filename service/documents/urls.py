"""Documents that a URL names, read without letting anyone look into this machine's network."""

import socket
import ssl
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import cast
from urllib.parse import urljoin, urlsplit

import anyio
import httpcore
from httpcore import SOCKET_OPTION

from service.documents.limits import MOST_BYTES, MOST_MIB
from service.errors import ApiError
from service.media_type import bare

Address = IPv4Address | IPv6Address

_REDIRECTS = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 5
_SECONDS = 20.0
# Addresses in these stand for others, which may be anything: 6to4 and NAT64.
_STAND_INS = (IPv6Network("2002::/16"), IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: Address, port: int) -> bool:
    """Whether it is an address of the internet, where everyone may go."""
    del port
    if isinstance(address, IPv6Address) and any(address in each for each in _STAND_INS):
        return False
    return address.is_global and not address.is_multicast


class DocumentUrls:
    """Each address is checked when it is about to be connected to, those of redirects too; so a
    name that changes its address between check and use is of no help to anyone. Proxies that the
    environment names are not used: what they connect to cannot be seen."""

    def __init__(self, may_reach: Callable[[Address, int], bool] = is_public) -> None:
        self._may_reach = may_reach

    async def read(self, url: str, path: str) -> tuple[str, bytes]:
        """Media type and bytes. Raises ApiError 400."""
        try:
            with anyio.fail_after(_SECONDS):
                async with httpcore.AsyncConnectionPool(
                    ssl_context=await anyio.to_thread.run_sync(ssl.create_default_context),
                    network_backend=_CheckedNetwork(self._may_reach),
                ) as pool:
                    return await _followed(pool, url, path)
        except TimeoutError as error:
            raise _refusal(path, f"could not be read within {_SECONDS:g} s") from error
        except _NotPublic as error:
            raise _refusal(path, "leads to an address that is not public") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
            raise _refusal(path, "could not be read") from error


class _NotPublic(Exception):
    pass


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    def __init__(self, may_reach: Callable[[Address, int], bool]) -> None:
        self._may_reach = may_reach
        self._network = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, as httpcore calls it
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(place[0]) for *_, place in found]
        # All, since one that is not public shows what the name is for.
        if not all(self._may_reach(ip_address(each), port) for each in addresses):
            raise _NotPublic
        return await self._network.connect_tcp(
            addresses[0], port, timeout, local_address, socket_options
        )


async def _followed(pool: httpcore.AsyncConnectionPool, url: str, path: str) -> tuple[str, bytes]:
    for _ in range(_MOST_REDIRECTS + 1):
        if urlsplit(url).scheme not in ("http", "https"):
            raise _refusal(path, "is, or leads to, a URL that is not http or https")
        async with pool.stream("GET", url.encode("ascii")) as response:
            headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in headers:
                url = urljoin(url, headers[b"location"])
                continue
            if response.status != 200:
                raise _refusal(path, f"was answered with status {response.status}")
            media_type = bare(headers.get(b"content-type", ""))
            return media_type, await _body(response, path)
    raise _refusal(path, f"leads to more than {_MOST_REDIRECTS} redirects")


async def _body(response: httpcore.Response, path: str) -> bytes:
    body = bytearray()
    async for piece in response.aiter_stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise _refusal(path, f"has more than {MOST_MIB} MiB")
    return bytes(body)


def _refusal(path: str, reason: str) -> ApiError:
    return ApiError.invalid(f"{path}: it {reason}; send the document's content instead")

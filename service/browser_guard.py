"""Keeps web pages away from a service that asks for no key.

A browser lets any page send requests to the local machine. What gives such a page away are the
`Origin` and `Sec-Fetch-Site` headers that a page cannot forge, and, where a host name of its own
was pointed at the local machine, the `Host` header.
"""

from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from service.errors import ApiError
from service.settings import LOOPBACK_HOSTS


def refuse_web_pages(headers: Headers) -> None:
    """Raises ApiError 403 for a request that a foreign web page may have made."""
    host = _host_name("//" + headers.get("Host", ""))
    if host not in LOOPBACK_HOSTS:
        raise ApiError.forbidden(
            "Host: this server answers to localhost, 127.0.0.1 and [::1] only; "
            "to serve other names, start it with --api-key-file"
        )
    origin = headers.get("Origin")
    if origin is not None and _host_name(origin) not in LOOPBACK_HOSTS:
        raise ApiError.forbidden("Origin: web pages of other sites may not use this server")
    if headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise ApiError.forbidden("Sec-Fetch-Site: web pages of other sites may not use this server")


def _host_name(address: str) -> str | None:
    try:
        name = urlsplit(address).hostname  # lower case, without port and brackets
    except ValueError:
        return None
    return name.removesuffix(".") if name else None

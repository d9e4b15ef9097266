"""Documents that a URL names: public addresses only, whatever the URL leads to."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Thread

import pytest

from service.documents import urls
from service.documents.urls import Address, DocumentUrls, is_public
from service.errors import ApiError

pytestmark = pytest.mark.anyio


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path.split("/"):
            case ["", "to", *place]:
                self.send_response(302)
                self.send_header("Location", "/".join(place))
            case ["", "large"]:
                self.send_response(200)
                self.send_header("Content-Length", str(33 << 20))
            case ["", "gone"]:
                self.send_response(404)
            case _:
                self.send_response(200)
                self.send_header("Content-Type", "Text/Plain; charset=utf-8")
        self.end_headers()
        if self.path == "/large":
            for _ in range(33):
                try:
                    self.wfile.write(bytes(1 << 20))
                except OSError:
                    return
        elif self.path == "/a.txt":
            self.wfile.write(b"what it says")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def reached(port: int) -> DocumentUrls:
    """What may reach this one site, as if it were a public one."""

    def may_reach(address: Address, asked: int) -> bool:
        return (str(address), asked) == ("127.0.0.1", port) or is_public(address, asked)

    return DocumentUrls(may_reach)


@pytest.mark.parametrize("way", ["a.txt", "to//a.txt", "to//to//a.txt"])
async def test_what_a_url_leads_to_is_read(reached: DocumentUrls, port: int, way: str) -> None:
    read = await reached.read(f"http://127.0.0.1:{port}/{way}", "p.url")
    assert read == ("text/plain", b"what it says")


async def _refusal(some: DocumentUrls, url: str) -> str:
    with pytest.raises(ApiError) as refused:
        await some.read(url, "p.url")
    assert refused.value.status == 400
    assert refused.value.message.startswith("p.url: it ")
    assert refused.value.message.endswith("; send the document's content instead")
    return refused.value.message


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433"]
)
async def test_this_machine_is_not_reached(port: int, host: str) -> None:
    message = await _refusal(DocumentUrls(), f"http://{host}:{port}/a.txt")
    assert "not public" in message


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("to/http://127.0.0.2/a.txt", "not public"),
        ("to/http://[fe80::1]/a.txt", "not public"),
        ("to/file:///etc/passwd", "not http or https"),
        ("to/to", "redirects"),
        ("large", "more than 32 MiB"),
        ("gone", "status 404"),
    ],
)
async def test_where_a_url_leads_is_checked(
    reached: DocumentUrls, port: int, way: str, reason: str
) -> None:
    assert reason in await _refusal(reached, f"http://127.0.0.1:{port}/{way}")


@pytest.mark.parametrize("url", ["", "a.txt", "file:///etc/passwd", "ftp://127.0.0.1/", "http://"])
async def test_other_urls_are_refused(url: str) -> None:
    await _refusal(DocumentUrls(), url)


async def test_a_name_with_one_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, reached: DocumentUrls, port: int
) -> None:
    def two(*_: object, **__: object) -> list[tuple[object, ...]]:
        places = [("127.0.0.1", port), ("10.0.0.1", port)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    assert "not public" in await _refusal(reached, f"http://two.example:{port}/a.txt")


async def test_a_site_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        some = DocumentUrls(lambda address, port: True)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert "could not be read within" in await _refusal(some, url)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1",
        "192.168.1.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fc00::1", "fe80::1%1",
        "ff02::1",
        "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address), 80)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ip_address(address), 443)

"""Without keys only local programs are answered: no web page may drive the service."""

import json

import pytest

from tests.support import raw_http
from tests.support.messages import body
from tests.support.refusals import refused
from tests.support.running import Running

REQUEST = json.dumps(body()).encode()


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:8000",
        b"localhost.",
        b"localhost.:8000",
        b"127.0.0.1:8000",
        b"[::1]",
        b"[::1]:8000",
    ],
)
def test_the_names_of_this_machine_are_answered(service: Running, host: bytes) -> None:
    assert raw_http.post(service.url, "/v1/messages", REQUEST, [(b"Host", host)]).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:8000",
        b"evil.example",
        b"localhost.evil.example",
        b"evil.example#localhost",
        b"evil.example/localhost",
        b"localhost@evil.example",
        b"localhost:8000@evil.example",
        b"127.0.0.1.evil.example",
        b"0.0.0.0",
        b"192.168.0.1",
        b"[::]",
        b"[::1",
        b"[evil]",
        b"\xe9vil.example",
        b"",
    ],
)
def test_other_names_are_refused(service: Running, host: bytes) -> None:
    for path in ("/v1/messages", "/v1/runs/run_x/cancel"):
        answer = raw_http.post(service.url, path, REQUEST, [(b"Host", host)])
        assert refused(answer, 403, "permission_error").startswith("Host: ")
    answer = raw_http.request(service.url, "GET", "/v1/runs", [(b"Host", host)])
    assert refused(answer, 403, "permission_error").startswith("Host: ")


def test_two_names_are_no_name(service: Running) -> None:
    headers = [(b"Host", b"localhost"), (b"Host", b"evil.example")]
    assert raw_http.post(service.url, "/v1/messages", REQUEST, headers).status_code == 400


@pytest.mark.parametrize(
    "header",
    [
        (b"Origin", b"https://evil.example"),
        (b"Origin", b"http://evil.example:8000"),
        (b"Origin", b"https://localhost.evil.example"),
        (b"Origin", b"null"),
        (b"Origin", b""),
        (b"Origin", b"file://"),
        (b"Origin", b"chrome-extension://abcdef"),
        (b"Origin", b"\xff"),
        (b"Sec-Fetch-Site", b"cross-site"),
        (b"Sec-Fetch-Site", b"same-site"),
    ],
)
def test_web_pages_of_other_sites_are_refused(
    service: Running, header: tuple[bytes, bytes]
) -> None:
    for content_type in (b"application/json", b"text/plain"):
        answer = raw_http.post(
            service.url, "/v1/messages", REQUEST, [header], content_type=content_type
        )
        message = refused(answer, 403, "permission_error")
        assert message.startswith(f"{header[0].decode()}: ")
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Origin", b"http://localhost:3000"), (b"Sec-Fetch-Site", b"same-origin")],
        [(b"Origin", b"http://127.0.0.1")],
        [(b"Origin", b"http://[::1]:80")],
        [(b"Sec-Fetch-Site", b"none")],
    ],
)
def test_pages_of_this_machine_are_answered_and_given_no_more_than_their_own(
    service: Running, headers: list[tuple[bytes, bytes]]
) -> None:
    headers = [*headers, (b"Anthropic-Dangerous-Direct-Browser-Access", b"true")]
    answer = raw_http.post(service.url, "/v1/messages", REQUEST, headers)
    assert answer.status_code == 200
    assert not any(name.startswith("access-control-") for name in answer.headers)


def test_a_form_or_a_plain_text_post_is_no_request(service: Running) -> None:
    for content_type in (
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data",
    ):
        answer = raw_http.post(service.url, "/v1/messages", REQUEST, content_type=content_type)
        assert refused(answer).startswith("content-type: ")


def test_a_preflight_opens_nothing(service: Running) -> None:
    headers = [
        (b"Host", b"localhost"),
        (b"Origin", b"https://evil.example"),
        (b"Access-Control-Request-Method", b"POST"),
        (b"Access-Control-Request-Headers", b"content-type"),
    ]
    answer = raw_http.request(service.url, "OPTIONS", "/v1/messages", headers)
    refused(answer, 403, "permission_error")
    answer = raw_http.request(service.url, "OPTIONS", "/v1/messages", [headers[0]])
    assert not any(name.startswith("access-control-") for name in answer.headers)

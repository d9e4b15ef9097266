"""With keys nobody is answered without one, in whichever header it is."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.auth import add_key
from tests.support import raw_http
from tests.support.messages import body
from tests.support.raw_http import Answer
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service

REQUEST = json.dumps(body()).encode()
Headers = list[tuple[bytes, bytes]]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1].encode(), add_key(file)[1].encode()


@pytest.fixture(scope="module")
def service(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, bytes, bytes]
) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, api_key_file=str(keys[0])) as running:
        yield running


@pytest.fixture
def key(keys: tuple[Path, bytes, bytes]) -> bytes:
    return keys[1]


def ask(service: Running, headers: Headers) -> Answer:
    return raw_http.post(service.url, "/v1/messages", REQUEST, headers)


def test_either_header_is_enough(service: Running, keys: tuple[Path, bytes, bytes]) -> None:
    for key in keys[1:]:
        for header in (
            (b"x-api-key", key),
            (b"X-API-KEY", b" " + key + b"  "),
            (b"Authorization", b"Bearer " + key),
            (b"authorization", b"bearer  " + key),
            (b"AUTHORIZATION", b"BEARER " + key + b" "),
        ):
            assert ask(service, [header]).status_code == 200, header


def test_one_good_key_is_enough_whatever_else_is_beside_it(service: Running, key: bytes) -> None:
    """Agents send the key of their user's other account along."""
    good, bad = (b"x-api-key", key), (b"x-api-key", b"sk-other")
    bearer, other_bearer = (b"Authorization", b"Bearer " + key), (b"Authorization", b"Bearer sk")
    for headers in (
        [good, bearer],
        [good, other_bearer],
        [bad, bearer],
        [good, good],
        [good, bad],
        [bad, good],
        [(b"Authorization", b"Basic eDp5"), good],
        [(b"x-api-key", b""), bearer],
    ):
        assert ask(service, headers).status_code == 200, headers


def test_without_a_good_key_nobody_is_answered(service: Running, key: bytes) -> None:
    for headers in (
        [],
        [(b"x-api-key", b"")],
        [(b"Authorization", b"Bearer")],
        [(b"Authorization", b"Bearer ")],
        [(b"Authorization", key)],
        [(b"Authorization", b"Basic " + key)],
        [(b"x-api-key", b"Bearer " + key)],
        [(b"x-api-key", key + b", " + key)],
        [(b"x-api-key", key[:-1])],
        [(b"x-api-key", key + b"x")],
        [(b"x-api-key", key.upper())],
        [(b"x-api-key", b"\xff\xfe\xe9")],
        [(b"Authorization", b"Bearer \xff\xfe")],
        [(b"x-api-key", b"x" * 60_000)],
        [(b"x-api-key", b"wrong"), (b"Authorization", b"Bearer wrong")],
        [(b"Cookie", b"x-api-key=" + key)],
        [(b"Origin", b"http://localhost"), (b"Host", b"localhost")],
    ):
        refused(ask(service, headers), 401, "authentication_error")


def test_a_key_in_the_query_is_none_and_is_not_repeated(service: Running, key: bytes) -> None:
    answer = raw_http.post(service.url, f"/v1/messages?api_key={key.decode()}", REQUEST)
    refused(answer, 401, "authentication_error")
    assert key not in answer.body
    assert key not in service.log.read_bytes()


def test_a_wrong_key_is_not_repeated(service: Running) -> None:
    answer = ask(service, [(b"x-api-key", b"sk-secret-of-another")])
    assert "sk-secret" not in refused(answer, 401, "authentication_error")
    assert b"sk-secret" not in service.log.read_bytes()


def test_a_key_of_a_megabyte_is_refused(service: Running) -> None:
    try:
        status = ask(service, [(b"x-api-key", b"x" * 1_000_000)]).status_code
    except ConnectionError:  # closed while it was still arriving
        return
    assert status in (401, 431)


def test_a_stranger_learns_nothing(service: Running) -> None:
    """Not whether the path, the body or the model is good: the key is looked at first."""
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/nothing", "/v1/runs/x/cancel"):
        for data in (REQUEST, b"{", b"\xff", b"[" * 100_000, b"x" * 2_000_000):
            answer = raw_http.post(service.url, path, data)
            assert refused(answer, 401, "authentication_error").startswith("an API key is required")
    for path in ("/v1/models", "/v1/models/tiny", "/v1/runs", "/v1/runs/x", "/v1/runtime"):
        answer = raw_http.request(service.url, "GET", path, [(b"Host", b"localhost")])
        refused(answer, 401, "authentication_error")
    answer = raw_http.request(service.url, "HEAD", "/v1/models", [(b"Host", b"localhost")])
    assert answer.status_code == 401


def test_a_connection_is_of_use_after_a_refusal(service: Running, key: bytes) -> None:
    with service.client() as client:
        for _ in range(3):
            response = client.post("/v1/messages", json=body("x" * 300_000))
            refused(response, 401, "authentication_error")
            response = client.post("/v1/messages", json=body(), headers={"x-api-key": key.decode()})
            assert response.status_code == 200


def test_a_supervisor_needs_no_key(service: Running) -> None:
    for method, path in (("GET", "/healthz"), ("HEAD", "/"), ("GET", "/")):
        answer = raw_http.request(service.url, method, path, [(b"Host", b"box.example")])
        assert answer.status_code == 200
    answer = raw_http.request(service.url, "GET", "/healthz", [(b"Host", b"box.example")])
    assert answer.json() == {"status": "ready"}, "what is wrong, if anything, is not for strangers"


def test_any_host_is_served(service: Running, key: bytes) -> None:
    headers = [(b"Host", b"box.example"), (b"Origin", b"https://app.example"), (b"x-api-key", key)]
    assert ask(service, headers).status_code == 200


def test_keys_are_nowhere_in_clear(service: Running, key: bytes) -> None:
    assert ask(service, [(b"x-api-key", key)]).status_code == 200
    for file in service.data_dir.rglob("*"):
        assert not file.is_file() or key not in file.read_bytes(), file


def test_runs_are_shown_to_the_key_that_asked(
    service: Running, keys: tuple[Path, bytes, bytes]
) -> None:
    mine, theirs = ({"x-api-key": key.decode()} for key in keys[1:])
    with service.client() as client:
        answer = client.post("/v1/messages", json=body(), headers=mine)
        path = f"/v1/runs/{answer.headers['mererun-run']}"
        assert client.get(path, headers=mine).status_code == 200
        for ask in (
            client.get(path, headers=theirs),
            client.get(f"{path}/events", headers=theirs),
            client.post(f"{path}/cancel", headers=theirs),
            client.post(f"{path}/resume", headers=theirs),
        ):
            assert ask.status_code == 404
        listed = client.get("/v1/runs", headers=theirs).json()["data"]
        assert path.rpartition("/")[2] not in [run["id"] for run in listed]

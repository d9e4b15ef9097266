"""The files API, as the SDK and as hostile clients use it."""

import hashlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from service.auth import add_key
from tests.support import raw_http
from tests.support.lives import assert_answers, assert_quiet_log, until
from tests.support.raw_http import Answer
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service

PATH = "/v1/files"
FORM = b"multipart/form-data; boundary=xyz"
LIMIT_MIB = 65


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(
        tiny, tmp_path_factory.mktemp("data"), file_limit_mib=LIMIT_MIB
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(service: Running, client: httpx.Client) -> Iterator[None]:
    """Every test deletes what it uploads, and then no byte of it is left."""
    yield
    for file in client.get(PATH, params={"limit": 1000}).json()["data"]:
        assert client.delete(f"{PATH}/{file['id']}").status_code == 200
    until(lambda: list((service.data_dir / "files").iterdir()) == [])
    assert_quiet_log(service)


def upload(client: httpx.Client, content: Any = b"hello", name: str = "a.txt") -> dict[str, Any]:
    answer = client.post(PATH, files={"file": (name, content)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def part(name: bytes, content: bytes, *more: bytes) -> bytes:
    """With `more`: what the disposition has beside the name, and other headers."""
    disposition, *headers = more or (b"",)
    lines = [b'Content-Disposition: form-data; name="' + name + b'"' + disposition, *headers]
    return b"--xyz\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + content + b"\r\n"


def post(
    service: Running, *parts: bytes, type: bytes = FORM, end: bytes = b"--xyz--\r\n"
) -> Answer:
    return raw_http.post(service.url, PATH, b"".join(parts) + end, content_type=type)


def uploaded(service: Running, *parts: bytes) -> dict[str, Any]:
    answer = post(service, *parts)
    assert answer.status_code == 200, answer.body
    return answer.json()


def test_a_file_is_what_was_uploaded(client: httpx.Client) -> None:
    content = bytes(range(256)) * 1000 + b"\r\n--xyz\r\n--"
    file = upload(client, content, "Bericht über ß.pdf")
    assert file == client.get(f"{PATH}/{file['id']}").json()
    assert file.pop("id").startswith("file_")
    assert file.pop("created_at").endswith("+00:00")
    assert file == {
        "type": "file",
        "filename": "Bericht über ß.pdf",
        "mime_type": "application/pdf",
        "size_bytes": len(content),
        "expires_at": None,
        "downloadable": True,
    }


def test_its_content_comes_back_to_be_kept_not_shown(client: httpx.Client) -> None:
    content = bytes(range(256)) * 10_000
    file = upload(client, content, 'a\u2028"<b>.html')
    address = f"{PATH}/{file['id']}/content"
    answer = client.get(address, headers={"Accept": "application/binary"})
    assert answer.content == content
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["content-disposition"].startswith("attachment; filename")
    assert answer.headers["x-content-type-options"] == "nosniff"
    head = client.head(address)
    assert head.headers["content-length"] == str(len(content))


def test_an_empty_file_is_one(client: httpx.Client) -> None:
    file = upload(client, b"")
    assert file["size_bytes"] == 0
    assert client.get(f"{PATH}/{file['id']}/content").content == b""


def test_the_newest_are_listed_first_and_by_pages(client: httpx.Client) -> None:
    ids = [upload(client)["id"] for _ in range(5)][::-1]

    def page(**query: Any) -> dict[str, Any]:
        return client.get(PATH, params={"limit": 2, **query}).raise_for_status().json()

    first = page()
    assert [each["id"] for each in first["data"]] == ids[:2]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[0], ids[1])
    second = page(page=first["next_page"])
    assert second == page(after_id=ids[1])
    assert [each["id"] for each in second["data"]] == ids[2:4]
    last = page(page=second["next_page"])
    assert [each["id"] for each in last["data"]] == ids[4:]
    assert (last["has_more"], last["next_page"]) == (False, None)
    back = page(before_id=ids[4])
    assert [each["id"] for each in back["data"]] == ids[2:4]


def test_a_client_that_deletes_what_it_lists_sees_all(client: httpx.Client) -> None:
    ids = [upload(client)["id"] for _ in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = client.get(PATH, params=query).raise_for_status().json()
        for file in page["data"]:
            seen.append(file["id"])
            assert client.delete(f"{PATH}/{file['id']}").json() == {
                "id": file["id"],
                "type": "file_deleted",
            }
        if page["next_page"] is None:
            break
        query["page"] = page["next_page"]
    assert seen == ids[::-1]


def test_files_are_listed_by_their_ids(client: httpx.Client) -> None:
    ids = [upload(client)["id"] for _ in range(3)]
    asked = [ids[0], ids[2], ids[0], "file_unknown"]
    page = client.get(PATH, params={"ids[]": asked}).json()
    assert [each["id"] for each in page["data"]] == [ids[2], ids[0]]
    assert page["next_page"] is None


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("page=page_x", "page"),
        ("page=page_1.0_file_1&after_id=file_1", "after_id"),
        ("ids[]=a&limit=3", "ids"),
        ("&".join(f"ids[]={n}" for n in range(101)), "ids"),
        ("scope_id=session_1", "scope_id"),
    ],
)
def test_what_cannot_be_listed_is_named(client: httpx.Client, query: str, named: str) -> None:
    assert refused(client.get(f"{PATH}?{query}")).startswith(f"{named}:")


@pytest.mark.parametrize("path", ["", "/content"])
@pytest.mark.parametrize("id", ["file_unknown", "..", "%2e%2e", "x" * 3000])
def test_an_unknown_file_is_not_found(client: httpx.Client, id: str, path: str) -> None:
    assert refused(client.get(f"{PATH}/{id}{path}"), 404, "not_found_error")


def test_an_unknown_file_cannot_be_a_cursor_or_deleted(client: httpx.Client) -> None:
    for answer in (
        client.get(PATH, params={"after_id": "file_unknown"}),
        client.get(PATH, params={"before_id": "file_unknown"}),
        client.delete(f"{PATH}/file_unknown"),
    ):
        assert refused(answer, 404, "not_found_error")


def test_of_two_deletions_one_is_told_that_it_was(service: Running, client: httpx.Client) -> None:
    id = upload(client)["id"]

    def delete(_: int) -> int:
        with service.client() as own:
            return own.delete(f"{PATH}/{id}").status_code

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(delete, range(4))) == [200, 404, 404, 404]


def test_a_file_that_is_being_read_may_be_deleted(service: Running, client: httpx.Client) -> None:
    content = b"0123456789abcdef" * (1 << 20)
    id = upload(client, content)["id"]
    with service.client() as reader, reader.stream("GET", f"{PATH}/{id}/content") as answer:
        parts = answer.iter_bytes()
        read = next(parts)
        assert client.delete(f"{PATH}/{id}").status_code == 200
        assert client.get(f"{PATH}/{id}/content").status_code == 404
        assert read + b"".join(parts) == content


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"../../etc/passwd", "passwd"),
        (rb"C:\\Users\\me\\notes.txt", "notes.txt"),
        (b"/", "unnamed.txt"),
        (b"..", "unnamed.txt"),
        (b"", "unnamed.txt"),
        ("наблюдение.txt".encode(), "наблюдение.txt"),
        (b"x" * 255, "x" * 255),
        (b"'; DROP TABLE files; --", "'; DROP TABLE files; --"),
    ],
)
def test_only_the_last_component_of_a_name_is_kept(
    service: Running, given: bytes, kept: str
) -> None:
    named = b'; filename="' + given + b'"'
    file = uploaded(service, part(b"file", b"x", named, b"Content-Type: text/plain"))
    assert file["filename"] == kept


def test_a_part_without_a_name_is_a_file_too(service: Running) -> None:
    file = uploaded(service, part(b"file", b"x"))
    assert (file["filename"], file["mime_type"]) == ("unnamed.bin", "application/octet-stream")


@pytest.mark.parametrize(
    ("name", "type", "mime_type"),
    [
        (b"a.md", b"Text/Plain; charset=utf-8", "text/plain"),
        (b"a.csv", b"application/octet-stream", "text/csv"),
        (b"a.pdf", b"", "application/pdf"),
        (b"a", b"", "application/octet-stream"),
    ],
)
def test_the_media_type_is_the_parts_or_follows_from_the_name(
    service: Running, name: bytes, type: bytes, mime_type: str
) -> None:
    named = b'; filename="' + name + b'"'
    file = uploaded(service, part(b"file", b"x", named, b"Content-Type: " + type))
    assert file["mime_type"] == mime_type


FILE = part(b"file", b"hello", b'; filename="a.txt"')


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([], "file:"),
        ([part(b"expires_in_seconds", b"3600")], "file:"),
        ([FILE, FILE], "file:"),
        ([part(b"files", b"hello", b'; filename="a.txt"')], "files:"),
        ([FILE, part(b"purpose", b"assistants")], "purpose:"),
        ([FILE, part(b"expires_in_seconds", b"3599")], "expires_in_seconds:"),
        ([FILE, part(b"expires_in_seconds", b"9" * 5000)], "expires_in_seconds:"),
        ([FILE, part(b"expires_in_seconds", "٣٦٠٠".encode())], "expires_in_seconds:"),
        ([FILE, part(b"expires_in_seconds", b"")], "expires_in_seconds:"),
        ([FILE, *[part(b"expires_in_seconds", b"3600")] * 2], "expires_in_seconds:"),
        ([part(b"file", b"x", b'; filename="' + b"x" * 256 + b'"')], "file:"),
        ([part(b"file", b"x", b'; filename="a\x00b"')], "file:"),
        ([part(b"file", b"x", b"; filename*=UTF-8''a%0d%0ab")], "file:"),
        ([part(b"file", b"x", b"", b"Content-Type: nonsense")], "file:"),
        ([part(b"file", b"x", b'; filename="\xff\xfe"')], "the request body"),
        ([b"--xyz\r\nContent-Type: text/plain\r\n\r\nhello\r\n"], "the request body"),
        ([b"--xyz\r\nX: " + b"x" * (4 << 20) + b"\r\n\r\nhello\r\n"], "the request body"),
        ([b"no part at all" * 300_000], "the request body"),
    ],
)
def test_a_form_that_is_not_as_it_must_be_is_told_so(
    service: Running, parts: list[bytes], named: str
) -> None:
    assert refused(post(service, *parts)).startswith(named)


@pytest.mark.parametrize("end", [b"", b"--xyz", b"--abc--\r\n"])
def test_a_form_that_does_not_end_is_no_upload(service: Running, end: bytes) -> None:
    assert refused(post(service, FILE[:-2], end=end)).startswith("the request body")


@pytest.mark.parametrize(
    "type",
    [
        b"application/json",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=" + b"x" * 71,
        b"application/octet-stream",
    ],
)
def test_another_content_type_is_told_what_is_needed(service: Running, type: bytes) -> None:
    assert refused(post(service, FILE, type=type)).startswith("Content-Type:")


def test_an_expiry_is_told(service: Running) -> None:
    file = uploaded(service, part(b"expires_in_seconds", b"3600"), FILE)
    assert file["expires_at"] > file["created_at"]


def test_a_large_file_is_never_in_memory(service: Running, client: httpx.Client) -> None:
    mebibytes = 64
    zeros = hashlib.sha256()
    process = psutil.Process(service.process.pid)
    before = most = process.memory_info().rss

    def content() -> Iterator[bytes]:
        nonlocal most
        yield b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="zeros"\r\n\r\n'
        for _ in range(mebibytes):
            yield bytes(1 << 20)
            most = max(most, process.memory_info().rss)
        yield b"\r\n--xyz--\r\n"

    headers = {"Content-Type": FORM.decode()}
    answer = client.post(PATH, content=content(), headers=headers)
    assert answer.json()["size_bytes"] == mebibytes << 20
    with client.stream("GET", f"{PATH}/{answer.json()['id']}/content") as read:
        for each in read.iter_bytes(1 << 20):
            zeros.update(each)
            most = max(most, process.memory_info().rss)
    assert zeros.digest() == hashlib.sha256(bytes(mebibytes << 20)).digest()
    assert most - before < 24 << 20


@pytest.mark.parametrize("chunked", [False, True])
def test_a_file_over_the_limit_is_refused(client: httpx.Client, chunked: bool) -> None:
    head = b'--xyz\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    content = [head, *[bytes(1 << 20)] * LIMIT_MIB, b"x", b"\r\n--xyz--\r\n"]
    answer = client.post(
        PATH,
        content=iter(content) if chunked else b"".join(content),
        headers={"Content-Type": FORM.decode()},
    )
    assert f"{LIMIT_MIB} MiB" in refused(answer, 413, "request_too_large")


def test_a_body_far_over_the_limit_is_refused_by_its_head(service: Running) -> None:
    length = str(1 << 40).encode()
    headers = [(b"Host", b"localhost"), (b"Content-Type", FORM), (b"Content-Length", length)]
    answer = raw_http.request(service.url, "POST", PATH, headers)
    assert f"{LIMIT_MIB} MiB" in refused(answer, 413, "request_too_large")


def begun_upload(service: Running) -> socket.socket:
    """Three of ten mebibytes of a file."""
    address = urlsplit(service.url)
    connection = socket.create_connection((address.hostname, address.port), 20)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10 << 20}\r\nContent-Type: "
    )
    connection.sendall(head.encode() + FORM + b"\r\n\r\n" + FILE[:-7] + bytes(3 << 20))
    until(lambda: list((service.data_dir / "files").glob("*.tmp")))
    return connection


def test_an_upload_that_breaks_off_leaves_nothing(service: Running, client: httpx.Client) -> None:
    with begun_upload(service):
        assert client.get(PATH).json()["data"] == []
        assert_answers(service)
    until(lambda: list((service.data_dir / "files").iterdir()) == [])
    assert client.get(PATH).json()["data"] == []


def test_files_belong_to_the_key_that_uploaded_them(tiny: Path, tmp_path: Path) -> None:
    keys = [add_key(tmp_path / "keys")[1] for _ in range(2)]
    with scripted_service(tiny, tmp_path / "data", api_key_file=str(tmp_path / "keys")) as service:
        own, other = (service.client(headers={"x-api-key": key}) for key in keys)
        with own, other, service.client() as nobody:
            id = upload(own)["id"]
            assert refused(nobody.post(PATH, files={"file": b"x"}), 401, "authentication_error")
            for answer in (
                other.get(f"{PATH}/{id}"),
                other.get(f"{PATH}/{id}/content"),
                other.delete(f"{PATH}/{id}"),
                other.get(PATH, params={"after_id": id}),
            ):
                assert refused(answer, 404, "not_found_error")
            assert other.get(PATH).json()["data"] == []
            assert other.get(PATH, params={"ids[]": id}).json()["data"] == []
            assert own.get(f"{PATH}/{id}/content").content == b"hello"

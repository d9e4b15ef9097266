"""Uploaded files under kills and full disks: each is there as a whole, or nothing of it is."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.disks import disk, full
from tests.faults.fragile import Fragile, assert_whole, fragile_service
from tests.faults.points import FILE_POINTS, FilePoint
from tests.support.lives import assert_answers, until

PATH = "/v1/files"
CONTENT = b"0123456789abcdef" * (1 << 16)


def points(situation: str) -> list[Any]:
    return [
        pytest.param(point, id=point.name.replace(" ", "-"))
        for point in FILE_POINTS
        if point.situation == situation
    ]


def upload(service: Fragile) -> httpx.Response:
    with service.client() as client:
        return client.post(PATH, files={"file": ("a.txt", CONTENT)})


def assert_stored(service: Fragile, there: bool) -> None:
    """The one file is there with its bytes, or neither row nor bytes are."""
    with service.client() as client:
        listed = client.get(PATH).raise_for_status().json()["data"]
        for file in listed:
            assert client.get(f"{PATH}/{file['id']}/content").content == CONTENT
    names = [path.name for path in (service.data_dir / "files").iterdir()]
    assert names == [file["id"] for file in listed]
    assert len(names) == there


@pytest.mark.parametrize("point", points("uploaded"))
def test_killed_at_the_end_of_an_upload(tiny: Path, tmp_path: Path, point: FilePoint) -> None:
    with fragile_service(tiny, tmp_path / "data", point=point.name) as service:
        with pytest.raises(httpx.TransportError):
            upload(service)
        service.dies()
        service.start()
        assert_stored(service, point.there)
        assert_whole(service)


@pytest.mark.parametrize("point", points("deleted"))
def test_killed_while_a_file_is_deleted(tiny: Path, tmp_path: Path, point: FilePoint) -> None:
    with fragile_service(tiny, tmp_path / "data", point=point.name) as service:
        id = upload(service).raise_for_status().json()["id"]
        with service.client() as client, pytest.raises(httpx.TransportError):
            client.delete(f"{PATH}/{id}")
        service.dies()
        service.start()
        assert_stored(service, point.there)
        assert_whole(service)


def test_killed_in_the_middle_of_an_upload(tiny: Path, tmp_path: Path) -> None:
    with fragile_service(tiny, tmp_path / "data") as service:

        def content() -> Iterator[bytes]:
            yield b'--xyz\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
            yield bytes(3 << 20)
            until(lambda: list((service.data_dir / "files").glob("*.tmp")))
            service.kill()
            yield bytes(3 << 20)

        with service.client() as client, suppress(httpx.TransportError):
            client.post(
                PATH,
                content=content(),
                headers={"Content-Type": "multipart/form-data;boundary=xyz"},
            )
        service.start()
        assert_stored(service, there=False)
        assert_whole(service)


def test_an_upload_does_not_take_the_disks_last_room(tiny: Path, tmp_path: Path) -> None:
    with (
        disk(tmp_path / "data", 64),
        fragile_service(tiny, tmp_path / "data") as service,
    ):
        answer = upload(service)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["details"] == {"error_code": "storage_quota_exceeded"}
        assert error["message"].startswith("file: the disk of the data folder has no room")
        assert_stored(service, there=False)
        assert_whole(service)


def test_a_full_disk_costs_the_uploads_that_meet_it(tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with disk(data, 320), fragile_service(tiny, data) as service:
        upload(service).raise_for_status()
        with full(data):
            assert upload(service).status_code == 400
            with service.client() as client:
                (file,) = client.get(PATH).json()["data"]
                assert client.get(f"{PATH}/{file['id']}/content").content == CONTENT
        assert_answers(service)
        assert_stored(service, there=True)
        assert_whole(service)

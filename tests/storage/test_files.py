"""Uploaded files: rows and bytes come and go together, also when a crash comes between."""

import time
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from sqlalchemy.exc import IntegrityError

from storage import files as module
from storage.database import Database
from storage.errors import StorageError
from storage.files import Files, NoRoom, StoredFile

pytestmark = pytest.mark.anyio

CONTENT = b"the content"


@pytest.fixture
async def files(db: Database, tmp_path: Path) -> Files:
    found = Files(db, tmp_path)
    await found.settle()
    return found


async def upload(files: Files, id: str, **known: object) -> StoredFile:
    async with files.receiving(id) as coming:
        coming.write(CONTENT)
        file = StoredFile(
            **{
                "id": id,
                "api_key": "",
                "filename": "notes.txt",
                "mime_type": "text/plain",
                "size": coming.size,
                "sha256": coming.sha256,
                "created_at": time.time(),
                "expires_at": None,
                **known,
            }
        )
        await files.keep(coming, file)
    return file


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "files").iterdir()}


async def test_a_file_is_there_for_its_key_alone(files: Files, tmp_path: Path) -> None:
    file = await upload(files, "file_1", api_key="key_a")
    assert file.sha256 == sha256(CONTENT).hexdigest()
    assert await files.get("file_1", "key_a") == file
    assert await files.read(file) == CONTENT
    for other in ("key_b", ""):
        assert await files.get("file_1", other) is None
        assert (await files.page(other, limit=9)).files == []
        assert (await files.among(["file_1"], other)).files == []
    folder = tmp_path / "files"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "file_1").stat().st_mode & 0o777 == 0o600


async def test_an_upload_that_breaks_off_leaves_nothing(files: Files, tmp_path: Path) -> None:
    async with files.receiving("file_1") as coming:
        coming.write(CONTENT)
        assert names(tmp_path) == {"file_1.tmp"}
    assert names(tmp_path) == set()
    assert await files.get("file_1", "") is None


async def test_a_row_that_cannot_be_written_leaves_nothing(files: Files, tmp_path: Path) -> None:
    await upload(files, "file_1")
    (tmp_path / "files" / "file_1").unlink()
    with pytest.raises(IntegrityError):  # of the same id
        await upload(files, "file_1")
    assert names(tmp_path) == set()


async def test_the_last_room_of_a_disk_is_not_taken(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESERVE_BYTES", 1 << 62)
    with pytest.raises(NoRoom):
        await upload(files, "file_1")
    assert names(tmp_path) == set()


async def test_pages_go_both_ways_and_survive_deletions(files: Files) -> None:
    # Two of the same moment, as a coarse clock has them.
    made = [await upload(files, f"file_{n}", created_at=float(n // 2)) for n in range(5)]
    newest_first = made[::-1]
    first = await files.page("", limit=2)
    assert (first.files, first.has_more) == (newest_first[:2], True)
    assert await files.delete(first.files[1])
    second = await files.page("", limit=2, after=first.files[1].place)
    assert (second.files, second.has_more) == (newest_first[2:4], True)
    last = await files.page("", limit=2, after=second.files[1].place)
    assert (last.files, last.has_more) == (newest_first[4:], False)
    back = await files.page("", limit=2, before=last.files[0].place)
    assert (back.files, back.has_more) == (newest_first[2:4], True)


async def test_of_two_who_delete_a_file_one_does(files: Files, tmp_path: Path) -> None:
    for number in range(20):
        file = await upload(files, f"file_{number}")
        done: list[bool] = []

        async def delete(file: StoredFile = file, done: list[bool] = done) -> None:
            done.append(await files.delete(file))

        async with anyio.create_task_group() as group:
            group.start_soon(delete)
            group.start_soon(delete)
        assert sorted(done) == [False, True]
    assert names(tmp_path) == set()


async def test_what_is_read_when_a_file_is_deleted_is_read_to_its_end(files: Files) -> None:
    file = await upload(files, "file_1")
    content = await files.open(file)
    assert content is not None
    assert await files.delete(file)
    with content:
        assert content.read() == CONTENT
    assert await files.read(file) is None


async def test_a_deletion_that_fails_is_none(
    files: Files, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await upload(files, "file_1")

    async def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(type(db), "execute", fail)
        with pytest.raises(StorageError):
            await files.delete(file)
    assert await files.read(file) == CONTENT
    assert await files.delete(file)
    assert names(tmp_path) == set()


async def test_the_next_start_ends_what_was_begun(files: Files, tmp_path: Path) -> None:
    """Whatever came first: the files are named by what their rows say."""
    kept, other_database = await upload(files, "file_1"), tmp_path / "files" / "file_9"
    coming = tmp_path / "files" / "file_1.tmp"
    (tmp_path / "files" / "file_1").rename(coming)
    (tmp_path / "files" / "file_2.tmp").write_bytes(b"half of a fi")
    other_database.write_bytes(b"of a row elsewhere")
    await files.settle()
    assert names(tmp_path) == {"file_1", "file_9"}
    assert await files.read(kept) == CONTENT


async def test_a_file_whose_time_is_over_has_no_bytes(files: Files, tmp_path: Path) -> None:
    file = await upload(files, "file_1", expires_at=100.0)
    await upload(files, "file_2")
    await files.expire(99.0)
    assert names(tmp_path) == {"file_1", "file_2"}
    await files.expire(100.0)
    assert names(tmp_path) == {"file_2"}
    assert await files.get("file_1", "") == file
    assert file.expired(100.0)
    assert not file.expired(99.0)


async def test_a_cancelled_request_keeps_a_file_or_not_but_never_half(
    files: Files, tmp_path: Path
) -> None:
    for number in range(20):
        id = f"file_{number}"
        async with anyio.create_task_group() as group:
            group.start_soon(upload, files, id)
            await anyio.sleep(number / 4000)
            group.cancel_scope.cancel()
        known = await files.get(id, "")
        assert (id in names(tmp_path)) == (known is not None)
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]


async def test_a_file_on_another_machine_is_listed_and_not_deleted(
    files: Files, db: Database, tmp_path: Path
) -> None:
    if not db.shared:
        pytest.skip("a database in a data folder is not shared")
    file = await upload(files, "file_1")
    elsewhere = Files(db, tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    await elsewhere.settle()
    assert (await elsewhere.page("", limit=9)).files == [file]
    assert await elsewhere.read(file) is None
    assert not await elsewhere.delete(file)
    assert await files.read(file) == CONTENT

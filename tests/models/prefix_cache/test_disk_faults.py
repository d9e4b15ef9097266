"""The disk tier where files, folders and disks are not as they should be."""

import logging
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from models.prefix_cache.disk import DiskTier
from models.prefix_cache.disk_file import read_header, read_piece
from models.safetensors_file import BrokenFile
from tests.faults.disks import disk as small_disk
from tests.faults.disks import full, read_only
from tests.models.prefix_cache import disk_states
from tests.models.prefix_cache.disk_states import (
    IDENTITY,
    arrays,
    assert_state_of,
    files,
    keep,
    served,
    tier,
)
from tests.support.lives import until
from tests.support.running import REPOSITORY

IDS = [(7 * i) % 1000 for i in range(300)]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder with a prompt in three pieces of 100 tokens, and another that has the first."""
    disk = tier(tmp_path)
    keep(disk, IDS, [100, 200, 300])
    keep(disk, [*IDS[:100], *([5] * 100)], [100, 200])
    disk.close()
    return tmp_path


def file_of(folder: Path, end: int) -> Path:
    found = tier(folder).find("key", array("I", IDS), end)
    return found.chain[-1].file


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def altered(file: Path) -> None:
    """One bit, in the last of its data."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def altered_in_its_header(file: Path) -> None:
    content = file.read_bytes()
    assert b'"ttl_seconds":"0"' in content
    file.write_bytes(content.replace(b'"ttl_seconds":"0"', b'"ttl_seconds":"9"'))


def altered_in_the_name_of_its_ids(file: Path) -> None:
    content = file.read_bytes()
    assert b'"ids":' in content
    file.write_bytes(content.replace(b'"ids":', b'"idr":'))


def replaced(file: Path) -> None:
    """By another prompt's, which is whole."""
    other = next(each for each in files(file.parent) if each != file)
    file.write_bytes(other.read_bytes())


def replaced_by_another_kind(file: Path) -> None:
    file.write_bytes(b"\x02\0\0\0\0\0\0\0{}")


@pytest.mark.parametrize(
    "harm",
    [
        truncated,
        emptied,
        altered,
        altered_in_its_header,
        altered_in_the_name_of_its_ids,
        replaced,
        replaced_by_another_kind,
    ],
)
def test_a_file_that_is_not_what_was_written_is_dropped_and_never_served(
    stored: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(stored, 200)
    harm(file)
    disk = tier(stored)

    assert served(disk, IDS) == 100
    assert served(disk, [*IDS[:100], *([5] * 100)]) == 200
    assert len(files(stored)) == 2  # what hung below it has gone with it
    facts = disk.facts()
    assert (facts["files"], facts["dropped"]) == (2, 1)
    assert [str(file) in each for each in caplog.messages] == [True]
    keep(disk, IDS, [100, 200, 300])
    disk.close()
    assert served(disk, IDS) == 300


def test_no_altered_bit_of_a_header_keeps_a_folder_from_being_opened(stored: Path) -> None:
    file = file_of(stored, 100)
    content = file.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    for place in range(header_end):
        for bit in range(8):
            altered = bytearray(content)
            altered[place] ^= 1 << bit
            file.write_bytes(altered)
            with suppress(BrokenFile, OSError):  # what is not found out now is, when it is read
                read_header(file)


def test_a_file_that_is_harmed_while_the_service_runs_is_dropped_too(stored: Path) -> None:
    disk = tier(stored)
    truncated(file_of(stored, 300))

    assert served(disk, IDS) == 200
    assert disk.facts()["dropped"] == 1


def test_a_file_that_somebody_removed_is_not_there(stored: Path) -> None:
    disk = tier(stored)
    file_of(stored, 200).unlink()

    assert served(disk, IDS) == 100


def test_pieces_without_the_one_before_are_removed(stored: Path) -> None:
    file_of(stored, 100).unlink()
    disk = tier(stored)

    assert (disk.facts()["files"], files(stored)) == (0, [])


def test_what_a_killed_service_left_half_written_is_removed(stored: Path) -> None:
    incoming = stored / "incoming"
    (incoming / ".tmpAbCd").write_bytes(b"half")
    (incoming / f"{IDENTITY}.safetensors").write_bytes(b"half")
    disk = tier(stored)

    assert list(incoming.iterdir()) == []
    assert served(disk, IDS) == 300


def test_kill_9_leaves_whole_files_or_none(tmp_path: Path) -> None:
    known: set[Path] = set()
    for _ in range(5):
        command = [sys.executable, "-m", disk_states.__name__, str(tmp_path)]
        child = subprocess.Popen(command, cwd=REPOSITORY)
        until(lambda known=known: len({*tmp_path.glob("*/*.safetensors")} - known) > 20)
        child.kill()
        child.wait()
        disk = tier(tmp_path)
        assert list((tmp_path / "incoming").iterdir()) == []
        known = set(files(tmp_path))
        for file in known:
            assert_state_of(read_piece(file))
        assert (disk.facts()["files"], disk.facts()["dropped"]) == (len(known), 0)
        assert served(disk, list(range(4000))) == 4000


def test_files_are_for_their_user_alone(stored: Path) -> None:
    for place in (stored, *stored.rglob("*")):
        assert place.stat().st_mode & 0o777 == (0o700 if place.is_dir() else 0o600)


def is_off(disk: DiskTier) -> str:
    """Why it is; it keeps nothing, and fails nobody."""
    keep(disk, IDS)
    assert served(disk, IDS) == 0
    disk.close()
    facts = disk.facts()
    assert not facts["on"]
    return facts["why"]


def test_a_folder_of_another_user_turns_it_off(
    stored: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = files(stored)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert "another user" in is_off(tier(stored))

    assert files(stored) == before
    assert len(caplog.messages) == 1


def test_a_file_in_the_place_of_the_folder_turns_it_off(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert is_off(tier(tmp_path / "cache"))


def test_a_disk_that_cannot_be_written_turns_it_off(stored: Path) -> None:
    with read_only(stored):
        assert "Read-only" in is_off(tier(stored))


def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 4):
        disk = tier(folder)
        keep(disk, IDS, [100])
        until(lambda: disk.facts()["written"] == 1)
        with full(folder):
            for number in range(10):
                keep(disk, [number] * 100_000)
            until(lambda: disk.facts()["skipped"] == 10)
            assert list((folder / "incoming").iterdir()) == []
            assert served(disk, IDS, 100) == 100
        assert [level for _, level, _ in caplog.record_tuples] == [logging.WARNING]
        keep(disk, IDS, [100, 300])
        disk.close()
        assert served(disk, IDS) == 300


def test_arrays_come_back_bit_by_bit(tmp_path: Path) -> None:
    keep(disk := tier(tmp_path), IDS, points=True)
    disk.close()
    (entry,) = disk.find("key", array("I", IDS), len(IDS)).chain
    piece = disk.load("key", array("I", IDS), entry)

    assert piece is not None
    assert piece.meta == {"end": len(IDS)}
    for name, expected in arrays(IDS).items():
        found = piece.arrays[name]
        assert found.dtype == expected.dtype
        assert found.values.tobytes() == expected.values.tobytes()

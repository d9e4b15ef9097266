import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from storage.data_dir import Holder, holder, lock, prepare
from storage.errors import StorageError
from storage.owner import this_process

CHILDREN = str(Path(__file__).with_name("children.py"))


def test_a_missing_data_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    prepare(folder)
    prepare(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_data_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"could not be made: File exists; use another"):
        prepare(tmp_path / "file")


def test_a_data_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() == 0:  # whom no mode keeps out
        monkeypatch.setattr(os, "access", lambda *_: False)
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="cannot be read and written; change its permissions"):
        prepare(tmp_path)


def test_a_lock_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "service.lock").mkdir()
    with pytest.raises(StorageError, match="could not be written: Is a directory"), lock(tmp_path):
        pass


@pytest.mark.parametrize("text", [None, "", "123", "[]", "{"])
def test_a_folder_that_nobody_holds_has_no_holder(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "service.lock").write_text(text)
    assert holder(tmp_path) is None


def test_a_second_service_is_told_who_has_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, CHILDREN, "hold", str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "locked\n"
    with pytest.raises(StorageError) as refused, lock(tmp_path):
        pass
    assert str(refused.value) == (
        f"another mererun (pid {child.pid}) is using {tmp_path}; stop it or use another --data-dir"
    )
    held = holder(tmp_path)
    assert held
    assert held.owner.startswith(f"{child.pid}:")
    child.kill()
    child.communicate()
    assert holder(tmp_path) is None
    with lock(tmp_path, model="tiny", weights_sha256="0123"):
        assert holder(tmp_path) == Holder(this_process(), "tiny", "0123")
    assert holder(tmp_path) is None
    assert stat.S_IMODE((tmp_path / "service.lock").stat().st_mode) == 0o600

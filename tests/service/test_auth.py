"""The key file: what it may hold, and that it holds no key."""

import hashlib
import stat
from pathlib import Path

import pytest

from service.auth import KeyFileError, Keys, add_key

DIGEST = hashlib.sha256(b"secret").hexdigest()


def test_an_added_key_is_known_by_its_id_and_kept_as_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "keys"
    added = [add_key(file) for _ in range(3)]
    keys = Keys.read(file)
    for key_id, key in added:
        assert keys.identify([], [key]) == key_id
        assert key not in file.read_text()
    assert len({key for _, key in added}) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_comments_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n\n  \none {DIGEST}  # of the laptop\n")
    assert Keys.read(file).identify(["Bearer secret"], []) == "one"


def test_a_key_is_added_to_a_file_whose_last_line_is_open(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one {DIGEST}")
    key_id, key = add_key(file)
    assert Keys.read(file).identify([], [key]) == key_id
    assert Keys.read(file).identify([], ["secret"]) == "one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key: run `mererun keys add` first"),
        (b"# nothing\n", "holds no key: run `mererun keys add` first"),
        (b"secret\n", "line 1 of the key file .* is not '<id> <sha256>'"),
        (f"one {DIGEST}\ntwo {DIGEST[1:]}\n".encode(), "line 2 of the key file"),
        (f"one {'é' * 64}\n".encode(), "line 1 of the key file"),
        (f"one two {DIGEST}\n".encode(), "line 1 of the key file"),
        (b"one \xff\xfe\n", "cannot be read: it is not text"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_of_no_use_is_refused_with_what_to_do(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(KeyFileError, match=message):
        Keys.read(file)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be written: "):
        add_key(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(KeyFileError, match="cannot be written: "):
        add_key(tmp_path / "file" / "keys")

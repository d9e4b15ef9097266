"""Thinking is recognised if it was signed with the key of the data folder, and only then."""

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.signatures import Altered, Foreign, Genuine, Signer
from storage.errors import StorageError

SIGNER = Signer(b"k" * 32)
OTHER = Signer(b"o" * 32)


@given(st.text(), st.booleans(), st.booleans())
def test_what_was_signed_is_genuine_and_verbatim(text: str, omitted: bool, is_note: bool) -> None:
    signature = SIGNER.sign(text, "m", "msg_1", 3, omitted=omitted, is_note=is_note)
    shown = "" if omitted else text
    assert SIGNER.check(shown, signature) == Genuine(text, "m", "msg_1", 3, is_note)
    assert OTHER.check(shown, signature) == Foreign()


@settings(max_examples=300)
@given(st.data())
def test_any_change_of_a_signature_is_noticed(data: st.DataObject) -> None:
    signature = SIGNER.sign("thought", "m", "msg_1", 0, omitted=data.draw(st.booleans()))
    place = data.draw(st.integers(0, len(signature) - 1))
    character = data.draw(st.characters(codec="ascii"))
    changed = signature[:place] + character + signature[place + 1 :]
    if changed != signature:
        assert not isinstance(SIGNER.check("thought", changed), Genuine)
    assert not isinstance(SIGNER.check("thought", signature[:place]), Genuine)


@given(st.text())
def test_any_text_is_a_foreign_signature(signature: str) -> None:
    assert SIGNER.check("thought", signature) == Foreign()


def test_omitted_thinking_cannot_be_replaced() -> None:
    signature = SIGNER.sign("thought", "m", "msg_1", 0, omitted=True)
    assert SIGNER.check("thought", signature) == Altered()


def test_text_cannot_move_into_the_claims() -> None:
    assert SIGNER.check("", SIGNER.sign("\0x", "m", "msg_1", 0)) == Altered()


def test_the_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    signature = Signer.open(tmp_path).sign("thought", "m", "msg_1", 0)
    assert isinstance(Signer.open(tmp_path).check("thought", signature), Genuine)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("damaged", ["", "abc", "zz" * 32, "00" * 31])
def test_a_damaged_key_is_said_to_be(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "thinking.key").write_text(damaged)
    with pytest.raises(StorageError, match="is damaged: restore it"):
        Signer.open(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not be read or made"):
        Signer.open(tmp_path / "missing")

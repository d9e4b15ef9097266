from pathlib import Path

import pytest

from models.catalog import CheckpointError
from models.sources import pull, remove


def test_a_folder_is_linked_under_its_own_name(model_folder: Path, tmp_path: Path):
    checkpoint = pull(str(model_folder), tmp_path / "models")
    assert checkpoint.id == "tiny"
    assert checkpoint.source == "local folder"
    assert checkpoint.path.is_symlink()
    assert pull(str(model_folder), tmp_path / "models") == checkpoint


def test_removing_it_leaves_the_folder_alone(model_folder: Path, tmp_path: Path):
    pull(str(model_folder), tmp_path / "models")
    remove("tiny", tmp_path / "models")
    assert not (tmp_path / "models" / "tiny").is_symlink()
    assert (model_folder / "config.json").exists()


def test_a_folder_without_a_tokenizer_is_not_linked(model_folder: Path, tmp_path: Path):
    (model_folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        pull(str(model_folder), tmp_path / "models")
    assert not (tmp_path / "models" / "tiny").is_symlink()


def test_another_model_of_that_name_is_not_replaced(model_folder: Path, tmp_path: Path):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="run `mererun models remove tiny`"):
        pull(str(model_folder), tmp_path / "models")


def test_a_link_whose_folder_is_gone_is_replaced(model_folder: Path, tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(tmp_path / "gone")
    assert pull(str(model_folder), tmp_path / "models").id == "tiny"


def test_a_name_of_no_kind_is_refused_with_the_kinds(tmp_path: Path):
    with pytest.raises(CheckpointError, match="nor a folder, nor a hub's org/name"):
        pull("smollm9", tmp_path / "models")


def test_a_models_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="choose another --data-dir") as refusal:
        pull("smollm2-135m-instruct", tmp_path / "file" / "models")
    assert str(tmp_path / "file") in str(refusal.value)

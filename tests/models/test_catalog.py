import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.catalog import DEFAULT_MODEL, CheckpointError, Sampling, inspect, installed, resolve
from models.safetensors_file import write_float32


def change(folder: Path, file: str, **values: object) -> None:
    """Set keys of a JSON file, making it when it is not there."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def test_a_model_folder_says_what_it_is(model_folder: Path):
    checkpoint = inspect(model_folder)
    assert (checkpoint.id, checkpoint.display_name) == ("tiny", "tiny")
    assert checkpoint.context_tokens == 128
    assert checkpoint.vocabulary == 300
    assert checkpoint.architecture == "llama"
    assert checkpoint.weights_sha256 is None
    assert inspect(model_folder, id="mine").id == "mine"


def test_every_file_may_name_an_end_of_sequence(model_folder: Path):
    change(model_folder, "generation_config.json", eos_token_id=[7, 8])
    assert inspect(model_folder).stop_ids == {1, 2, 7, 8}


def test_sampling_is_the_models_own_only_when_it_samples(model_folder: Path):
    change(model_folder, "generation_config.json", temperature=0.6, top_p=0.9, top_k=20)
    assert inspect(model_folder).sampling == Sampling(1.0, 1.0, 0)
    change(model_folder, "generation_config.json", do_sample=True)
    assert inspect(model_folder).sampling == Sampling(0.6, 0.9, 20)


def test_sizes_of_a_vision_model_are_those_of_its_text_part(model_folder: Path):
    text = {"vocab_size": 500, "max_position_embeddings": 64}
    change(model_folder, "config.json", vocab_size=1, text_config=text)
    assert inspect(model_folder).vocabulary == 500
    assert inspect(model_folder).context_tokens == 64


def test_a_chat_template_is_found_wherever_it_is_kept(model_folder: Path):
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    change(model_folder, "tokenizer_config.json", chat_template=named)
    assert inspect(model_folder).chat_template() == "yes"
    (model_folder / "chat_template.jinja").write_text("file")
    assert inspect(model_folder).chat_template() == "file"


def test_a_base_model_has_no_chat_template_and_says_so(model_folder: Path):
    change(model_folder, "tokenizer_config.json", chat_template=None)
    with pytest.raises(CheckpointError, match="instruction-tuned"):
        inspect(model_folder).chat_template()


def cut(folder: Path, length: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])


def lose_a_part(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00002-of-00003.safetensors")


def lose_an_indexed_part(folder: Path) -> None:
    parts = {"a": "model.safetensors", "b": "model-2.safetensors"}
    change(folder, "model.safetensors.index.json", weight_map=parts)


def lose_bytes(folder: Path) -> None:
    write_float32(folder / "model.safetensors", {"x": (4,)}, [np.zeros(4, np.float32)])
    cut(folder, -1)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "does not hold a JSON object"),
        (lambda folder: change(folder, "config.json", vocab_size=None), "no usable vocab_size"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no \\*.safetensors weights"),
        (lambda folder: cut(folder, 4), "is not a safetensors file"),
        (lambda folder: cut(folder, 20), "has no readable header"),
        (lose_bytes, "has \\d+ of \\d+ bytes"),
        (lose_a_part, "lacks model-00001-of-00003.safetensors \\(2 of"),
        (lose_an_indexed_part, "lacks model-2.safetensors \\(1 of"),
    ],
)
def test_an_incomplete_folder_is_refused_naming_what_is_missing(
    model_folder: Path, damage: Callable[[Path], object], named: str
):
    damage(model_folder)
    with pytest.raises(CheckpointError, match=named) as refusal:
        inspect(model_folder)
    assert "\n" not in str(refusal.value)


def test_a_model_without_an_end_is_refused(model_folder: Path):
    change(model_folder, "config.json", eos_token_id=None)
    change(model_folder, "tokenizer_config.json", eos_token=None)
    with pytest.raises(CheckpointError, match="add eos_token_id"):
        inspect(model_folder)


def test_a_folder_whose_name_is_not_utf_8_is_refused(model_folder: Path):
    renamed = model_folder.rename(os.fsdecode(os.fsencode(model_folder) + b"\xff"))
    with pytest.raises(CheckpointError, match="not UTF-8: rename the folder"):
        inspect(renamed)


def test_a_name_means_an_installed_model_or_a_folder(model_folder: Path, tmp_path: Path):
    models_dir = tmp_path / "models"
    models_dir.mkdir()
    assert resolve(str(model_folder), models_dir).path == model_folder
    (models_dir / "org--tiny").symlink_to(model_folder)
    assert resolve("org/tiny", models_dir).id == "org--tiny"
    assert resolve("org--tiny", models_dir).id == "org--tiny"


@pytest.mark.parametrize("name", ["absent", "..", "", ".lock"])
def test_a_name_that_is_not_installed_says_how_to_get_it(name: str, tmp_path: Path):
    (tmp_path / ".lock").touch()
    with pytest.raises(CheckpointError):
        resolve(name, tmp_path)
    with pytest.raises(CheckpointError, match="neither an installed model nor a model folder"):
        resolve("absent", tmp_path)


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "org/name"])
def test_a_name_that_can_be_pulled_says_how(name: str, tmp_path: Path):
    with pytest.raises(CheckpointError, match=f"run `mererun models pull {name}`"):
        resolve(name, tmp_path)


def test_only_usable_models_are_installed(model_folder: Path, tmp_path: Path):
    models_dir = tmp_path / "models"
    assert installed(models_dir) == []
    (models_dir / "broken").mkdir(parents=True)
    (models_dir / ".partial-x").mkdir()
    (models_dir / "tiny").symlink_to(model_folder)
    assert [checkpoint.id for checkpoint in installed(models_dir)] == ["tiny"]

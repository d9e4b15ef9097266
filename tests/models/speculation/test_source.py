"""What drafts for a model: what was asked for, if it fits, or the companion that is shipped."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from models.catalog import Checkpoint, CheckpointError, inspect
from models.speculation import source
from models.speculation.source import drafter_of
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.support.tiny_companion import write_tiny_companion
from tests.support.tiny_qwen import write_tiny_qwen

OWN = {"target_layer_ids": [0, 1], "mask_token_id": 0}


@pytest.fixture
def target(tmp_path: Path) -> Checkpoint:
    return inspect(write_tiny_checkpoint(tmp_path / "target"))


@pytest.fixture
def companion(tmp_path: Path, target: Checkpoint) -> Path:
    return write_tiny_companion(tmp_path / "companion", target.path)


def change(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_companion_is_known_by_its_architecture(target: Checkpoint, companion: Path) -> None:
    assert drafter_of(target, str(companion), Path("nowhere")) == companion


def test_a_model_with_the_same_tokens_drafts(target: Checkpoint, tmp_path: Path) -> None:
    draft = write_tiny_checkpoint(tmp_path / "models" / "draft")
    tokenizer = draft / "tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()), indent=3))
    assert drafter_of(target, "draft", tmp_path / "models") == draft
    assert drafter_of(target, str(draft), Path("nowhere")) == draft


def test_a_model_with_other_tokens_is_refused(target: Checkpoint, tmp_path: Path) -> None:
    draft = write_tiny_qwen(tmp_path / "qwen", "qwen3")
    with pytest.raises(CheckpointError, match=r"qwen cannot draft for target, .* same tokenizer"):
        drafter_of(target, str(draft), Path("nowhere"))


def test_what_is_not_there_is_refused(target: Checkpoint, tmp_path: Path) -> None:
    for asked in ("org/name", str(tmp_path / "nothing")):
        with pytest.raises(CheckpointError):
            drafter_of(target, asked, tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: change(folder, hidden_size=64), "of 64 channels, and target has 32"),
        (lambda folder: change(folder, num_target_layers=30), "of 30 layers, and target has 2"),
        (lambda folder: change(folder, dflash_config={}), "says no target_layer_ids"),
        (lambda folder: change(folder, dflash_config=[]), "says no target_layer_ids"),
        (lambda folder: change(folder, dflash_config=OWN | {"block_size": 1}), "1, .* 2 to 256"),
        (lambda folder: change(folder, dflash_config=OWN | {"block_size": 257}), "of 257"),
        (lambda folder: change(folder, head_dim="wide"), "config.json invalid literal"),
        (lambda folder: change(folder, layer_types=["full_attention"]), "1 layer_types for 2"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no \\*.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"1234"), "pull or copy"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
    ],
)
def test_a_companion_that_does_not_fit_is_refused_with_the_reason(
    target: Checkpoint, companion: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(companion)
    with pytest.raises(CheckpointError, match=message):
        drafter_of(target, str(companion), Path("nowhere"))


def test_a_shipped_companion_drafts_for_the_very_weights_it_was_trained_for(
    target: Checkpoint, companion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_SHIPPED", companion.parent)
    packaged = replace(target, id="companion", weights_sha256="ab12")
    assert drafter_of(packaged, None, Path("nowhere")) is None
    change(companion, target_sha256="ab12")
    assert drafter_of(packaged, None, Path("nowhere")) == companion
    for other in (
        replace(packaged, weights_sha256="cd34"),
        replace(packaged, id="another"),
        target,
    ):
        assert drafter_of(other, None, Path("nowhere")) is None


def test_the_default_model_comes_with_a_companion(smollm2: Path) -> None:
    folder = drafter_of(inspect(smollm2), None, Path("nowhere"))
    assert folder is not None
    assert drafter_of(inspect(smollm2), str(folder), Path("nowhere")) == folder
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert size < 16 << 20

"""`mererun models convert`, and what the engine makes of its files."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.catalog import inspect
from tests.models.engine import on_mlx
from tests.models.engine.on_mlx import OnMlx
from tests.models.quantization.coding import command
from tests.support.tiny_checkpoint import write_tiny_checkpoint

Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("data")
    write_tiny_checkpoint(data_dir / "models" / "tiny")
    return data_dir


@pytest.fixture
def models(mlx: OnMlx, data_dir: Path) -> Command:
    return lambda *arguments: mlx(command, arguments, data_dir)


@pytest.fixture(scope="module")
def converted(mlx: OnMlx, data_dir: Path) -> Path:
    code, said = mlx(command, ("convert", "tiny", "--form", "q8-symmetric"), data_dir)
    assert code == 0, said
    assert "tiny-q8-symmetric is installed in" in said
    return data_dir / "models" / "tiny-q8-symmetric"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_receipt_tells_what_was_made_of_what(converted: Path, data_dir: Path) -> None:
    receipt = json.loads((converted / "receipt.json").read_text())
    source = data_dir / "models" / "tiny" / "model.safetensors"
    assert receipt["form"] == "q8-symmetric"
    assert receipt["sha256"] == digest(converted / "model.safetensors")
    assert receipt["of"]["id"] == "tiny"
    assert receipt["of"]["files"] == {"model.safetensors": digest(source)}
    # Of this model, only these take inputs in whole groups of 64.
    assert receipt["modules"] == [f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1)]


def test_it_is_a_model_of_its_own(converted: Path, models: Command) -> None:
    checkpoint = inspect(converted)
    assert checkpoint.display_name == "tiny (8-bit, exact zero)"
    assert checkpoint.weights_sha256 == digest(converted / "model.safetensors")
    rows = {row["id"]: row for row in json.loads(models("list", "--json")[1])}
    assert rows["tiny-q8-symmetric"]["state"] == "installed from conversion"
    assert rows["tiny-q8-symmetric"]["size_bytes"] < rows["tiny"]["size_bytes"]


def test_the_engine_computes_with_what_the_file_says_exactly(
    mlx: OnMlx, converted: Path, tmp_path: Path
) -> None:
    """As with the same weights written out in float32."""
    assert mlx(on_mlx.facts, converted)["stored_as"] == "8-bit, groups of 64"
    dense = shutil.copytree(converted, tmp_path / "dense")
    config = json.loads((dense / "config.json").read_text())
    del config["quantization"]
    (dense / "config.json").write_text(json.dumps(config))
    mlx(write_dense, converted / "model.safetensors", dense / "model.safetensors")
    ids = list(range(40, 72))
    assert mlx(logits, converted, ids) == mlx(logits, dense, ids)


def write_dense(coded: Path, dense: Path) -> None:
    import mlx.core as mx

    given = {name: np.array(each.astype(mx.float32)) for name, each in mx.load(str(coded)).items()}
    raw = mx.load(str(coded))
    written = {}
    for name, array in given.items():
        path, _, kind = name.rpartition(".")
        if kind == "weight" and f"{path}.scales" in given:
            codes = np.array(raw[name]).view(np.uint8).reshape(len(array), -1, 64)
            scales, biases = (given[f"{path}.{each}"][..., None] for each in ("scales", "biases"))
            written[name] = (scales * codes + biases).astype(np.float32).reshape(len(array), -1)
        elif kind not in ("scales", "biases"):
            written[name] = array
    save_file(written, dense, metadata={"format": "mlx"})


def logits(folder: Path, ids: list[int]) -> list[float]:
    import mlx.core as mx

    model = on_mlx.resident(folder)._model
    return model(mx.array([ids]))[0, -1].tolist()


def test_modules_can_keep_their_weights(models: Command, data_dir: Path) -> None:
    code, said = models(
        *("convert", "tiny", "--form", "q4-affine", "--as", "half", "--keep", "model.layers.1.*")
    )
    assert code == 0, said
    receipt = json.loads((data_dir / "models" / "half" / "receipt.json").read_text())
    assert receipt["modules"] == ["model.layers.0.mlp.down_proj"]
    assert receipt["kept"] == ["model.layers.1.*"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("tiny", "--as", "tiny"),
            "a model is installed as tiny: run `mererun models remove",
        ),
        (("tiny-q8-symmetric",), "has been converted to fewer bits before"),
        (
            ("tiny", "--as", "x", "--keep", "no.such"),
            "tiny has no module no.such that would be coded: one is model.layers.1.mlp.down_proj,",
        ),
        (("tiny", "--as", "x", "--keep", "model.layers.0"), "tiny has no module model.layers.0 "),
        (("tiny", "--as", "../x"), "../x is no name for a model"),
        (("tiny", "--as", "gemma-3-270m"), "gemma-3-270m is the name of another model"),
        (("nothing",), "nothing is neither an installed model nor a model folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    converted: Path, models: Command, data_dir: Path, arguments: tuple[str, ...], why: str
) -> None:
    before = sorted((data_dir / "models").iterdir())
    code, said = models("convert", *arguments, "--form", "q8-affine")
    assert code == 2
    assert said.startswith("Error: ")
    assert why in said
    assert sorted((data_dir / "models").iterdir()) == before


def test_weights_that_are_no_numbers_are_refused_and_nothing_is_left(
    models: Command, data_dir: Path
) -> None:
    broken = write_tiny_checkpoint(data_dir / "models" / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = np.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "mlx"})
    code, said = models("convert", "broken", "--form", "q8-symmetric")
    assert code == 2
    assert "model.layers.1.mlp.down_proj.weight has weights that are no numbers" in said
    assert not list((data_dir / "models").glob("*broken-q8*"))
    shutil.rmtree(broken)

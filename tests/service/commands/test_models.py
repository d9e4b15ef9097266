import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from models.catalog import PACKAGED, Checkpoint, CheckpointError, inspect
from service.commands.models import models


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MERERUN_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(models, arguments, input=answer)


def test_with_nothing_installed_the_list_shows_what_can_be_pulled(data_dir: Path):
    result = run("list")
    assert result.exit_code == 0
    assert "smollm2-135m-instruct" in result.stdout
    assert "can be pulled" in result.stdout


def test_a_pulled_folder_is_listed_and_shown(data_dir: Path, model_folder: Path):
    pulled = run("pull", str(model_folder))
    assert pulled.stdout == f"tiny is installed in {data_dir}/models/tiny\n"
    first = json.loads(run("list", "--json").stdout)[0]
    assert first["id"] == "tiny"
    assert first["stop_ids"] == [1, 2]
    shown = json.loads(run("show", "tiny", "--json").stdout)
    assert shown == first
    assert "context tokens  128" in run("show", "tiny").stdout


def test_a_packaged_model_is_shown_before_it_is_pulled(data_dir: Path):
    shown = json.loads(run("show", "smollm2-135m-instruct", "--json").stdout)
    assert shown["licence"] == "Apache-2.0"


def test_a_base_model_and_its_terms_are_told_before_it_is_pulled(data_dir: Path):
    shown = run("show", "gemma-3-270m").stdout
    assert "Gemma Terms of Use (https://ai.google.dev/gemma/terms)" in shown
    assert "a base model" in shown


def test_terms_are_shown_and_accepted_by_an_option_or_at_a_terminal_only(
    data_dir: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    terms = PACKAGED["gemma-3-270m"].terms

    def pull(name: str, models_dir: Path, accepts: Callable[[object, str], bool]) -> Checkpoint:
        if not accepts(terms, "Be kind."):
            raise CheckpointError("nobody accepted")
        return inspect(model_folder)

    monkeypatch.setattr("models.sources.pull", pull)
    refused = run("pull", "gemma-3-270m", answer="y\n")  # from a pipe: nobody has read them
    assert (refused.exit_code, refused.stderr) == (2, "Be kind.\nError: nobody accepted\n")
    accepted = run("pull", "gemma-3-270m", "--accept-licence")
    assert (accepted.exit_code, accepted.stderr) == (0, "Be kind.\n")


def test_a_broken_model_is_listed_with_what_is_wrong(data_dir: Path):
    (data_dir / "models" / "broken").mkdir(parents=True)
    assert "not usable" in run("list").stdout
    assert "config.json" in run("list").stdout


def test_remove_asks_first(data_dir: Path, model_folder: Path):
    run("pull", str(model_folder))
    declined = run("remove", "tiny", answer="n\n")
    assert "Remove the link" in declined.stdout
    assert declined.exit_code == 1
    assert (data_dir / "models" / "tiny").is_symlink()

    assert run("remove", "tiny", answer="y\n").exit_code == 0
    assert not (data_dir / "models" / "tiny").is_symlink()
    assert (model_folder / "config.json").exists()


def test_remove_takes_models_that_cannot_be_used(data_dir: Path):
    (data_dir / "models" / "broken").mkdir(parents=True)
    assert run("remove", "--yes", "broken").exit_code == 0
    assert not (data_dir / "models" / "broken").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "absent"),
        ("remove", "--yes", "absent"),
        ("remove", "--yes", ".."),
        ("pull", "absent"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    data_dir: Path, arguments: tuple[str, ...]
):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_a_data_folder_that_is_a_file_is_one_line_and_exit_code_2(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").touch()
    for command in (["list"], ["pull"]):
        result = run(*command, "--data-dir", str(tmp_path / "data"))
        assert result.exit_code == 2
        assert "--data-dir" in result.stderr
        assert result.stderr.count("\n") == 1


def test_the_commands_cost_the_service_no_heavy_import():
    heavy = {"mlx", "numpy", "huggingface_hub", "transformers", "tokenizers", "gguf"}
    script = f"import service.commands.models, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n"

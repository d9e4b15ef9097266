"""`tools/score-perplexity`, and the arithmetic that it rests on."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from models.catalog import CheckpointError, inspect
from tests.support.running import REPOSITORY
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tools.perplexity.comparing import compare
from tools.perplexity.scoring import Scores
from tools.perplexity.windows import windows_of

TEXT = "".join(f"{number} bottles on the wall, " for number in range(99, 60, -1))
Score = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and one that finds every token as likely as any other."""
    data_dir = tmp_path_factory.mktemp("data")
    write_tiny_checkpoint(data_dir / "models" / "tiny")
    indifferent = write_tiny_checkpoint(data_dir / "models" / "indifferent")
    weights = load_file(indifferent / "model.safetensors")
    weights["model.embed_tokens.weight"][:] = 0
    save_file(weights, indifferent / "model.safetensors", metadata={"format": "mlx"})
    return data_dir


@pytest.fixture
def score(data_dir: Path, tmp_path: Path) -> Score:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        text = tmp_path / "text.txt"
        text.write_text(TEXT)
        tool = [str(REPOSITORY / "tools" / "score-perplexity"), *arguments, "--text", str(text)]
        return subprocess.run(
            [*tool, "--data-dir", str(data_dir)], capture_output=True, text=True, cwd=tmp_path
        )

    return run


def test_models_are_compared_over_the_same_windows(score: Score, tmp_path: Path) -> None:
    done = score("indifferent", "tiny", "indifferent", "--window", "300", "--report", "r.json")
    assert done.returncode == 1, done.stderr  # the tiny one is worse than knowing nothing
    report = json.loads((tmp_path / "r.json").read_text())
    vocabulary = inspect(write_tiny_checkpoint(tmp_path / "again")).vocabulary
    assert report["reference"]["perplexity"] == pytest.approx(vocabulary, rel=1e-5)
    tiny, same = report["candidates"]
    assert tiny["ratio"] == pytest.approx(tiny["perplexity"] / vocabulary, rel=1e-5)
    assert tiny["interval"][0] < tiny["ratio"] < tiny["interval"][1]
    assert (same["ratio"], same["agreement"], same["passes"]) == (1, 1, True)
    assert report["text"]["sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert report["positions"] == (len(TEXT) // 300) * 299
    assert "| indifferent |" in done.stdout
    assert "| FAIL |" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("tiny", "missing"), "missing is neither an installed model nor a model folder"),
        (("tiny", "tiny", "--window", "4096"), "tokens, which is no window of 4096"),
        (("tiny", "tiny", "--report", "no/folder/r.json"), "cannot be written"),
    ],
)
def test_what_cannot_be_scored_is_said_in_one_line(
    score: Score, arguments: tuple[str, ...], why: str
) -> None:
    done = score(*arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_that_cannot_be_written_in_the_end_is_said_in_one_line(
    score: Score, tmp_path: Path
) -> None:
    (tmp_path / "r.json.part").mkdir()
    done = score("tiny", "tiny", "--report", "r.json")
    assert done.returncode == 2
    assert "r.json cannot be written: Is a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_models_with_other_tokens_are_not_compared(tmp_path: Path) -> None:
    one, other = (write_tiny_checkpoint(tmp_path / name) for name in ("one", "other"))
    tokenizer = Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.add_tokens(["bottles"])
    tokenizer.save(str(other / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="other makes other tokens of the text than one"):
        windows_of(TEXT, 100, [inspect(one), inspect(other)])


def test_the_interval_is_that_of_windows_and_not_of_tokens() -> None:
    """A candidate that is worse in whole windows is less certain than one that is so everywhere."""
    random = np.random.default_rng(1)
    losses = random.gamma(2, 2, (50, 64)).astype(np.float32)
    choices = np.zeros((50, 64), np.uint32)
    reference = Scores(losses, choices)
    everywhere = compare(reference, Scores(losses + np.float32(0.01), choices))
    worse = losses + np.where(np.arange(50) < 5, 0.1, 0).astype(np.float32)[:, None]
    in_places = compare(reference, Scores(worse, choices))
    for each in (everywhere, in_places):
        assert each.ratio == pytest.approx(np.exp(0.01), rel=1e-4)
    assert everywhere.high - everywhere.low < 1e-5
    assert in_places.high - in_places.low > 0.005
    assert not in_places.passes

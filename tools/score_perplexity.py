"""`tools/score-perplexity`: what fewer bits cost a model, on a text that both read alike."""

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from models.catalog import Checkpoint, CheckpointError, resolve
from service.commands.one_line import Refusal
from service.commands.options import data_dir_option
from tools.perplexity.comparing import LIMIT, Comparison, compare
from tools.perplexity.scoring import Scores, scores_of
from tools.perplexity.windows import Windows, windows_of
from tools.qualification.table import table
from tools.qualification.writing import CannotWrite, check_place, write_json

_TEXT = Path(__file__).parent / "perplexity" / "alice.txt"
_WINDOW_TOKENS = 512


@click.command()
@click.argument("reference")
@click.argument("candidates", nargs=-1, required=True)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=_TEXT,
    help="A text in UTF-8. [default: Alice's Adventures in Wonderland]",
)
@click.option("--window", type=click.IntRange(8, 8192), default=_WINDOW_TOKENS, show_default=True)
@click.option("--windows", type=click.IntRange(2), help="No more of them. [default: all]")
@click.option("--report", type=click.Path(path_type=Path), help="Write what was found as JSON.")
@data_dir_option
def main(
    reference: str,
    candidates: tuple[str, ...],
    text: Path,
    window: int,
    windows: int | None,
    report: Path | None,
    data_dir: Path,
) -> None:
    """Compare the perplexity of models, each named as `mererun models list` does or by a folder,
    with that of REFERENCE. The exit code is 1 where the ratio may be above 1.001."""
    try:
        if report is not None:
            check_place(report)
        found = [resolve(each, data_dir / "models") for each in (reference, *candidates)]
        words, sha256 = _read(text)
        asked = windows_of(words, window, found)
        if windows is not None:
            asked = Windows(asked.ids[:windows], asked.given)
        scores = [scores_of(each, asked) for each in found]
        compared = [compare(scores[0], each) for each in scores[1:]]
        click.echo(_page(asked, found, scores, compared))
        if report is not None:
            told = {"name": text.name, "sha256": sha256}
            write_json(report, {"text": told, **_as_json(asked, found, scores, compared)})
    except (CheckpointError, CannotWrite) as error:
        raise Refusal(str(error)) from None
    sys.exit(int(not all(each.passes for each in compared)))


def _read(text: Path) -> tuple[str, str]:
    """What it says, and the SHA-256 of that."""
    try:
        data = text.read_bytes()
        return data.decode(), hashlib.sha256(data).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{text} cannot be read as UTF-8: {error}") from None


def _page(
    asked: Windows, found: list[Checkpoint], scores: list[Scores], compared: list[Comparison]
) -> str:
    rows = [(found[0].id, f"{scores[0].perplexity:.4f}", "", "", "", "reference")]
    rows += [
        (
            checkpoint.id,
            f"{each.perplexity:.4f}",
            f"{comparison.ratio:.5f}",
            f"{comparison.low:.5f} to {comparison.high:.5f}",
            f"{comparison.agreement:.2%}",
            "pass" if comparison.passes else "FAIL",
        )
        for checkpoint, each, comparison in zip(found[1:], scores[1:], compared, strict=True)
    ]
    heading = ("model", "perplexity", "ratio", "95 % of draws", "same first choice")
    count, tokens = asked.ids.shape
    return (
        f"{asked.positions} positions in {count} windows of {tokens} tokens; bar: the upper bound "
        f"of the ratio is at most {LIMIT}\n\n{table((*heading, 'verdict'), rows)}"
    )


def _as_json(
    asked: Windows, found: list[Checkpoint], scores: list[Scores], compared: list[Comparison]
) -> dict[str, Any]:
    count, tokens = asked.ids.shape
    return {
        "windows": count,
        "tokens_a_window": tokens,
        "positions": asked.positions,
        "ids_sha256": asked.sha256,
        "limit": LIMIT,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "reference": _model(found[0], scores[0]),
        "candidates": [
            _model(checkpoint, each)
            | {
                "ratio": comparison.ratio,
                "interval": [comparison.low, comparison.high],
                "agreement": comparison.agreement,
                "passes": comparison.passes,
            }
            for checkpoint, each, comparison in zip(found[1:], scores[1:], compared, strict=True)
        ],
    }


def _model(checkpoint: Checkpoint, scores: Scores) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "weights_sha256": checkpoint.weights_sha256,
        "perplexity": scores.perplexity,
        "loss_of_windows": scores.losses.mean(axis=1).tolist(),
    }


if __name__ == "__main__":
    main(prog_name="score-perplexity")

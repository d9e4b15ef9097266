"""Options that more than one command takes."""

from typing import Any

import click

from service.commands.user_path import UserPath
from service.settings import default_data_dir


def option(name: str, help: str, **more: Any) -> Any:
    """An option that can also be set as `MERERUN_<NAME>`."""
    variable = "MERERUN_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, help=help, **more)


def _url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Not a word, which would be a file that nobody shares, in whatever folder this is."""
    if value and "://" not in value:
        raise click.BadParameter("it should be like postgresql+asyncpg://user:password@host/name")
    return value


data_dir_option = option(
    "--data-dir",
    "Where models, database and run records are kept.",
    type=UserPath(file_okay=False),
    default=default_data_dir,
    show_default="$XDG_DATA_HOME/mererun",
)
database_option = option(
    "--database-url",
    "A PostgreSQL that services share, postgresql+asyncpg://…; else a file in the data folder.",
    callback=_url,
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

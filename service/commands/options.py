"""Options that more than one command takes."""

from typing import Any

import click

from service.commands.user_path import UserPath
from service.settings import default_data_dir


def option(name: str, help: str, **more: Any) -> Any:
    """An option that can also be set as `MERERUN_<NAME>`."""
    variable = "MERERUN_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, help=help, **more)


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
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

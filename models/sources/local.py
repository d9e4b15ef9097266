"""A model folder that is on this machine already: checked, and linked under its name."""

from pathlib import Path

from models.catalog import Checkpoint, CheckpointError, inspect


def pull(folder: Path, models_dir: Path) -> Checkpoint:
    """Link `folder` into the models folder under its own name, after checking that it is whole."""
    target = folder.resolve()
    inspect(target)
    link = models_dir / target.name
    if link.resolve() == target:
        return inspect(link)
    if link.exists():
        raise CheckpointError(
            f"another model is installed as {link.name}: run `mererun models remove {link.name}` "
            "or rename your folder"
        )
    link.unlink(missing_ok=True)  # a link whose folder is gone
    link.symlink_to(target, target_is_directory=True)
    return inspect(link)

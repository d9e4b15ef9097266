import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from storage.errors import StorageError


def migrate(engine: Engine, path: Path) -> None:
    """Bring the database at `path` to the newest schema this code knows. Blocks.

    `engine` must begin its transactions with BEGIN IMMEDIATE. A schema that this code does not
    know is left alone and raises `StorageError`.
    """
    config = _config()
    known = ScriptDirectory.from_config(config)
    with _alone(path.parent):
        _use_write_ahead_log(engine)
        with engine.begin() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            if current == known.get_current_head():
                return
            if current is not None:
                _refuse_newer(current, known, path)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def check(engine: Engine, path: Path) -> None:
    """Raise `StorageError` unless the database at `path` has the newest schema. Blocks."""
    known = ScriptDirectory.from_config(_config())
    head = known.get_current_head()
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        raise StorageError(
            f"{path} has no schema yet; start `mererun serve` once or use another --data-dir"
        )
    _refuse_newer(current, known, path)
    if current != head:
        raise StorageError(
            f"{path} was written by an older mererun (schema {current}, now {head}); "
            "start `mererun serve` once to upgrade it"
        )


def _refuse_newer(current: str, known: ScriptDirectory, path: Path) -> None:
    if current not in {script.revision for script in known.walk_revisions()}:
        raise StorageError(
            f"{path} was written by a newer mererun (schema {current}); "
            "upgrade mererun or use another --data-dir"
        )


def _config() -> Config:
    config = Config()
    # ConfigParser reads "%" as the start of an interpolation.
    config.set_main_option("script_location", _migrations_folder().replace("%", "%%"))
    return config


def _migrations_folder() -> str:
    spec = find_spec("migrations")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(iter(spec.submodule_search_locations))


def _use_write_ahead_log(engine: Engine) -> None:
    # Outside any transaction: SQLite changes the journal mode nowhere else.
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    # The change to WAL answers "locked" at once, whatever the busy time-out, when two processes
    # open a new database together; so they take turns on the folder.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

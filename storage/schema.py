from importlib.util import find_spec

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from storage.errors import StorageError


def migrate(connection: Connection, name: str, elsewhere: str) -> None:
    """Bring a database to the newest schema this code knows, in the transaction that is open.

    Nobody else may be about it. A schema that this code does not know is left alone and raises
    `StorageError`, in which `elsewhere` is what to use instead of the database called `name`.
    """
    config = _config()
    known = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    if current == known.get_current_head():
        return
    if current is not None:
        _refuse_newer(current, known, name, elsewhere)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def check(connection: Connection, name: str, elsewhere: str) -> None:
    """Raise `StorageError` unless the database has the newest schema."""
    known = ScriptDirectory.from_config(_config())
    head = known.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        raise StorageError(
            f"{name} has no schema yet; start `mererun serve` once or use {elsewhere}"
        )
    _refuse_newer(current, known, name, elsewhere)
    if current != head:
        raise StorageError(
            f"{name} was written by an older mererun (schema {current}, now {head}); "
            "start `mererun serve` once to upgrade it"
        )


def _refuse_newer(current: str, known: ScriptDirectory, name: str, elsewhere: str) -> None:
    if current not in {script.revision for script in known.walk_revisions()}:
        raise StorageError(
            f"{name} was written by a newer mererun (schema {current}); "
            f"upgrade mererun or use {elsewhere}"
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

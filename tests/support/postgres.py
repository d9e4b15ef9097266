"""A PostgreSQL server of the tests' own, without a network, gone when they end."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from sqlalchemy import make_url

from storage.database import Database

_START_SECONDS = 60


class Server:
    """A cluster in a folder, reached through a socket there; `user` is its superuser."""

    user = "mererun"

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._queue: str | None = None
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-sync", "--pgdata=data")
        # A role that must give its password.
        hba = folder / "data" / "pg_hba.conf"
        hba.write_text(f"local all guarded scram-sha-256\n{hba.read_text()}")

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                self._binaries / "postgres",
                *("-D", "data", "-k", self.folder, "-c", "listen_addresses="),
                *("-c", "fsync=off", "-c", "full_page_writes=off"),
            ],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            **_as_ordinary_user(),
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        """At once, breaking what connections there are."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """As a power cut would, but for the disk."""
        assert self._process is not None
        for process in [self._process, *psutil.Process(self._process.pid).children()]:
            process.kill()
        self._process.wait(_START_SECONDS)
        self._process = None

    def url(self, database: str, user: str = user) -> str:
        return f"postgresql+asyncpg://{user}@/{database}?host={self.folder}"

    def sql(self, *statements: str, database: str = "postgres") -> str:
        """Run them and return what they print."""
        arguments = ["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--host", self.folder]
        commands = [f"--command={statement}" for statement in statements]
        return self._run("psql", *arguments, "--dbname", database, *commands)

    def new_database(self) -> str:
        """The URL of an empty database, without a schema."""
        self._databases += 1
        self.sql(f"CREATE DATABASE mererun_{self._databases}")
        return self.url(f"mererun_{self._databases}")

    def empty_queue(self) -> str:
        """The URL of a database that has the schema and no rows; it is always the same one.

        To make one takes ten times as long as to empty one.
        """
        if self._queue is None:
            self._queue = self.new_database()
            anyio.run(_make_schema, self._queue)
        else:
            self.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
                *(
                    f"DELETE FROM {table}"
                    for table in ("jobs", "batches", "discarded_records", "files")
                ),
                database=make_url(self._queue).database or "",
            )
        return self._queue

    def _ready(self) -> bool:
        command = [self._binaries / "pg_isready", "--quiet", "--host", self.folder]
        return subprocess.run(command).returncode == 0

    def _run(self, program: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [self._binaries / program, "--username", self.user, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            **_as_ordinary_user(),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


async def _make_schema(url: str) -> None:
    async with Database.open(url):
        pass


@contextmanager
def postgres_server() -> Iterator[Server]:
    """Running; skips the test where PostgreSQL is not installed, but not in CI."""
    binaries = _binaries()
    if binaries is None:
        reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    # Not in pytest's folder: a socket's path is short, and the server's user has to reach it.
    folder = Path(tempfile.mkdtemp(prefix="mererun-pg-"))
    server = None
    try:
        if os.getuid() == 0:
            shutil.chown(folder, *(_as_ordinary_user()[key] for key in ("user", "group")))
        server = Server(binaries, folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder)


def _binaries() -> Path | None:
    """Where the server's programs are: on the path they are rarely."""
    found: list[Path] = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda it: float(it.parent.name)
    )
    if shutil.which("pg_config"):
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
        found.append(Path(said.stdout.strip()))
    return next((it for it in reversed(found) if (it / "initdb").exists()), None)


def _as_ordinary_user() -> dict[str, str | Sequence[str]]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    group = pwd.getpwnam("postgres").pw_gid
    return {"user": "postgres", "group": group, "extra_groups": []}

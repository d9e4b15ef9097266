import os
import shutil
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from weakref import finalize

import orjson

from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.json_text import from_json, to_json
from storage.to_disk import sync

# Syncs that are asked for together share one commit of the file system's journal.
_SYNCS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="run-record-sync")


class RunRecord:
    """The files of one run, from the request to the answer. Its methods block.

    A final file is written under a temporary name; it is synced together with the folder that
    names it, so that a writer waits once; then it is renamed. Should a power cut undo the rename,
    reading takes the temporary file, if it is whole. One writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events: int | None = None  # the descriptor, while this record is written
        self._seq = 0

    @classmethod
    def create(
        cls,
        data_dir: Path,
        run_id: str,
        created_at: float,
        *,
        request: dict[str, Any],
        prompt: dict[str, Any],
        thread: dict[str, Any] | None = None,
    ) -> Self:
        """Begin the record `runs/YYYY/MM/DD/<run id>` (the day in UTC), on disk when this returns.

        A record that could not be begun leaves nothing behind and raises `StorageError`.
        """
        path = record_path(data_dir, run_id, created_at)
        more = {} if thread is None else {"thread.json": thread}
        with _explained(path):
            made = _make_folders(path, data_dir)
            try:
                _publish(
                    path,
                    {"request.json": request, "prompt.json": prompt, **more},
                    also_sync=[folder.parent for folder in made],
                )
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        return cls(path)

    @classmethod
    def at(cls, path: Path) -> Self:
        """The record in an existing folder."""
        return cls(path)

    def append(self, events: Sequence[dict[str, Any]]) -> None:
        """Add events, each with the next `seq` (from 1); a crash of the process spares them.

        Events that could not be written whole are taken back, and `StorageError` says why.
        """
        with _explained(self.path):
            descriptor = self._open_events()
            size = os.fstat(descriptor).st_size
            lines = b"".join(
                to_json({"seq": seq, **event}) + b"\n"
                for seq, event in enumerate(events, self._seq + 1)
            )
            try:
                _write_all(descriptor, lines)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            self._seq += len(events)

    def close(self, *, response: dict[str, Any], telemetry: dict[str, Any] | None) -> None:
        """End the record; all of it is on disk when this returns."""
        files = {} if telemetry is None else {"telemetry.json": telemetry}
        with _explained(self.path):
            descriptor = self._open_events()
            # The response comes last: its presence says that the record is closed.
            _publish(self.path, {**files, "response.json": response}, also_sync=[descriptor])
            self._release()
            self._events = None

    def reopen(self) -> None:
        """Take the end of the record back, since the run goes on."""
        with _explained(self.path):
            # The response says that the record is closed, so it goes first.
            for name in ("response.json", "telemetry.json"):
                for file in (self.path / name, _temporary(self.path / name)):
                    file.unlink(missing_ok=True)
                failpoint(f"took back {name}")

    @property
    def closed(self) -> bool:
        """Whether the run came to its end, whatever end that was."""
        return self.response() is not None

    @property
    def begun(self) -> bool:
        """Whether anything came after the request."""
        return self.closed or bool(self.events())

    def request(self) -> dict[str, Any]:
        """The request as received, secrets and images replaced by digests."""
        return self._required("request.json")

    def prompt(self) -> dict[str, Any]:
        """The prepared prompt."""
        return self._required("prompt.json")

    def thread(self) -> dict[str, Any] | None:
        """What is needed to continue from the answer; None where nobody asked for that."""
        return self._read("thread.json")

    def response(self) -> dict[str, Any] | None:
        """The answer or the error; None while the record is open."""
        return self._read("response.json")

    def telemetry(self) -> dict[str, Any] | None:
        """The run's telemetry; None while the record is open or when nothing was measured."""
        return self._read("telemetry.json")

    def events(self) -> list[dict[str, Any]]:
        """The events so far; a last line that a crash tore is left out."""
        return self._whole_events()[0]

    def _open_events(self) -> int:
        if self._events is None:
            whole, size = self._whole_events()
            self._events = os.open(
                self.path / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
            # A writer that lost its lease just lets go of the record, unclosed.
            self._release = finalize(self, os.close, self._events)
            # A line torn by a crash would swallow the next one.
            os.ftruncate(self._events, size)
            self._seq = len(whole)
        return self._events

    def _whole_events(self) -> tuple[list[dict[str, Any]], int]:
        """The events and the bytes they take in the file."""
        try:
            lines = (self.path / "events.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise _unreadable(self.path, "events.jsonl", error) from error
        events: list[dict[str, Any]] = []
        size = 0
        for number, line in enumerate(lines, 1):
            try:
                events.append(orjson.loads(line if line.endswith(b"\n") else b""))
                size += len(line)
            except orjson.JSONDecodeError:
                if number < len(lines):
                    raise StorageError(
                        f"the run record {_shown(self.path)} is damaged in line {number} of "
                        "events.jsonl; restore it from a copy or remove the record"
                    ) from None
        return events, size

    def _required(self, name: str) -> dict[str, Any]:
        found = self._read(name)
        if found is None:
            raise StorageError(
                f"the run record {_shown(self.path)} has no readable {name}; "
                "restore it from a copy or remove the record"
            )
        return found

    def _read(self, name: str) -> dict[str, Any] | None:
        for file in (self.path / name, _temporary(self.path / name)):
            try:
                return from_json(file.read_bytes())
            except (FileNotFoundError, ValueError):
                continue
            except OSError as error:
                raise _unreadable(self.path, name, error) from error
        return None


def record_path(data_dir: Path, run_id: str, created_at: float) -> Path:
    """Where the record of a run lies; `created_at` is in unix seconds."""
    day = datetime.fromtimestamp(created_at, UTC)
    return data_dir / "runs" / f"{day:%Y}" / f"{day:%m}" / f"{day:%d}" / run_id


def _make_folders(path: Path, root: Path) -> list[Path]:
    """Make `path`, which must be new, and what it lacks of parents below `root`; outermost first.

    `mkdir(parents=True)` would give the parents the umask's mode.
    """
    missing = [path]
    for parent in path.parents:
        if parent == root or parent.exists():
            break
        missing.insert(0, parent)
    for folder in missing:
        try:
            folder.mkdir(mode=0o700, exist_ok=folder != path)
        except FileNotFoundError:
            if not root.exists():
                raise
            # Its day was empty, and somebody who removes old records has just removed it.
            return _make_folders(path, root)
    return missing


def _publish(path: Path, files: dict[str, Any], *, also_sync: Sequence[int | Path]) -> None:
    """Write files into the folder `path`, wait once for all of them, and name them in order."""
    opened: list[int] = []
    try:
        for name, value in files.items():
            descriptor = os.open(
                _temporary(path / name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
            )
            opened.append(descriptor)
            _write_all(descriptor, to_json(value))
        folders = [path, *(item for item in also_sync if isinstance(item, Path))]
        opened.extend(os.open(folder, os.O_RDONLY) for folder in folders)
        given = [item for item in also_sync if isinstance(item, int)]
        list(_SYNCS.map(sync, opened + given))
    except BaseException:
        for name in files:
            _temporary(path / name).unlink(missing_ok=True)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)
    for name in files:
        failpoint(f"naming {name}")
        _temporary(path / name).rename(path / name)


def _temporary(file: Path) -> Path:
    return file.with_name(file.name + ".tmp")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _shown(path: Path) -> str:
    """The path below the data folder: runs/YYYY/MM/DD/<run id>."""
    return str(Path(*path.parts[-5:]))


def _unreadable(path: Path, name: str, error: OSError) -> StorageError:
    return StorageError(
        f"{name} of the run record {_shown(path)} could not be read: {error.strerror}; "
        "make it readable for this user"
    )


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the run record {_shown(path)} could not be written: {error.strerror}; "
            "free space or move --data-dir"
        ) from error

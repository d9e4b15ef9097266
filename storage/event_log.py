"""A run's events, read while they are written."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio import to_thread

from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState

_PIECE_BYTES = 64 << 10
_LOOK_SECONDS = 0.05
# The row is asked when the record changed, and this often besides: a run may end without a word.
_ASK_SECONDS = 1.0
_GOING_ON = {JobState.QUEUED, JobState.RUNNING}


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One line of `events.jsonl`: its number from 1, the kind of event, and the line itself."""

    seq: int
    kind: str
    line: bytes

    def details(self) -> dict[str, Any]:
        return orjson.loads(self.line)


class EventLog:
    """The events after number `after` in a record that may not be there yet, a piece at a time.

    A last line that is not whole is not read: its writer may be at it, or be gone, and then the
    next one takes it back.
    """

    def __init__(self, record: Path, after: int = 0) -> None:
        self._path = record / "events.jsonl"
        self._after = after
        self._seq = 0
        self._offset = 0
        self._file: int | None = None
        self._seen: tuple[int, int] | None = None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def changed(self) -> bool:
        """Whether the file is another than when this was last asked. It does not block."""
        seen, self._seen = self._seen, self._look()
        return self._seen != seen

    def read(self) -> Sequence[LoggedEvent]:
        """The next events; none when all have been read. Blocks. Raises StorageError."""
        while lines := self._next_lines():
            found: list[LoggedEvent] = []
            for line in lines:
                self._seq += 1
                self._offset += len(line) + 1
                if self._seq > self._after:
                    found.append(LoggedEvent(self._seq, self._kind(line), line))
            if found:
                return found
        return ()

    def _next_lines(self) -> list[bytes]:
        """Whole lines, without their ends; none at the end of the file."""
        size = _PIECE_BYTES
        while True:
            data = self._read(size)
            lines = data.split(b"\n")
            if len(lines) == 1 and len(data) == size:
                size *= 2  # not yet one line
                continue
            unfinished = lines.pop()
            if lines and not unfinished and self._is_end(data) and not _is_whole(lines[-1]):
                lines.pop()
            if not lines and self._is_replaced():
                self.close()
                self._seq = self._offset = self._after = 0
                continue
            return lines

    def _read(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY)
            return os.pread(self._file, size, self._offset)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"{self._shown} could not be read: {error.strerror}") from error

    def _is_end(self, data: bytes) -> bool:
        assert self._file is not None
        return self._offset + len(data) >= os.fstat(self._file).st_size

    def _is_replaced(self) -> bool:
        """Whether the run was begun anew, which it is where its record keeps no content."""
        now = self._look()
        return self._file is not None and now is not None and now[0] != os.fstat(self._file).st_ino

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size

    def _kind(self, line: bytes) -> str:
        try:
            event = orjson.loads(line)
            if event["seq"] == self._seq:
                return event["event"]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            pass
        raise StorageError(f"{self._shown} is damaged in line {self._seq}")

    @property
    def _shown(self) -> str:
        return str(Path(*self._path.parts[-6:]))


async def follow(
    jobs: Jobs, job: Job, data_dir: Path, *, after: int = 0, quiet_seconds: float
) -> AsyncGenerator[Sequence[LoggedEvent] | Job]:
    """The events of a run after number `after`, as they come, whichever process writes them.

    An empty sequence when nothing came for `quiet_seconds`. The last is the job as it
    ended; it is left out for one that was removed meanwhile. Raises StorageError.
    """
    record = data_dir / job.record
    with closing(EventLog(record, after)) as log:
        quiet_since = anyio.current_time()
        while True:
            log.changed()
            # The row before the events: what it ended with has been written by then.
            found = await jobs.get(job.id)
            while events := await to_thread.run_sync(log.read):
                yield events
                quiet_since = anyio.current_time()
            if found is None:
                return
            if found.state not in _GOING_ON:
                yield found
                return
            asked = anyio.current_time()
            while True:
                await anyio.sleep(_LOOK_SECONDS)
                now = anyio.current_time()
                if log.changed() or now > asked + _ASK_SECONDS or _is_closed(record):
                    break
                if now >= quiet_since + quiet_seconds:
                    yield ()
                    quiet_since = now


def _is_closed(record: Path) -> bool:
    return os.path.exists(record / "response.json")


def _is_whole(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True

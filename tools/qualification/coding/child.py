"""A program that runs alone: without a terminal, for a limited time, ended with all it started."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Ended:
    """What became of it: `code` is its exit code, None where its time was over."""

    code: int | None
    out: str
    err: str
    seconds: float


def run_child(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    seconds: float,
    given: bytes = b"",
) -> Ended:
    """Run it to its end, or end it and its group. `given` are the few bytes on its stdin. Raises
    OSError where it cannot be started."""
    # Files, since what it has left behind could hold a pipe open for ever.
    with TemporaryFile() as out, TemporaryFile() as err:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            if process.stdin:
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pipe.write(given)
            code = _wait(process, seconds)
            if code is None:
                # It may have groups of its own to end: Claude Code's commands are in such.
                _signal(process, signal.SIGTERM)
                _wait(process, _GRACE_SECONDS)
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()
        return Ended(code, _text(out), _text(err), round(time.monotonic() - began, 3))


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    # There may be nobody left; macOS then denies the permission.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")

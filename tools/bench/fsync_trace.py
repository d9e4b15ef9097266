"""When a process waited for the disk, as strace sees it.

Every fsync is made to take some time more, so that two in sequence and two at once look different
however fast the disk is: a call that begins before another returned shares its wait.
"""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DELAY_SECONDS = 0.02
_CALLS = "fsync,fdatasync"
_CALL = re.compile(r"(?P<thread>\d+) +(?P<at>\d+\.\d+) (?P<what>.*)")
_TOOK = re.compile(r"<(?P<seconds>\d+\.\d+)>$")


@contextmanager
def traced(pid: int, log: Path) -> Iterator[None]:
    """Note each fsync of the process `pid` and its threads in `log`, for the length of the block.

    Its processes of other names, such as the engine, are left alone.
    """
    delayed = f"inject={_CALLS}:delay_exit={round(_DELAY_SECONDS * 1e6)}"
    command = ["strace", "-f", "-ttt", "-T", "-e", f"trace={_CALLS}", "-e", delayed]
    with subprocess.Popen(
        [*command, "-o", str(log), "-p", str(pid)], stderr=subprocess.PIPE, text=True
    ) as strace:
        assert strace.stderr is not None
        said = strace.stderr.readline()  # "Process … attached", or what is wrong
        if "attached" not in said:
            raise RuntimeError(f"strace cannot watch the service: {said.strip()}")
        time.sleep(0.2)  # until the other threads are attached too
        try:
            yield
        finally:
            strace.send_signal(signal.SIGINT)
            strace.stderr.read()


def waits_between(log: Path, begun: float, ended: float) -> int:
    """How many times something waited for the disk in this time (unix seconds); calls that
    overlap are one wait."""
    waits, busy_until = 0, 0.0
    for start, end in _calls(log):
        if begun <= start <= ended:
            waits += start > busy_until
            busy_until = max(busy_until, end)
    return waits


def _calls(log: Path) -> list[tuple[float, float]]:
    calls: list[tuple[float, float]] = []
    open_since: dict[str, float] = {}
    for line in log.read_text().splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        thread, at, what = call["thread"], float(call["at"]), call["what"]
        took = _TOOK.search(what)
        if what.endswith("<unfinished ...>"):
            open_since[thread] = at
        elif took is not None:
            start = open_since.pop(thread, at) if "resumed" in what else at
            calls.append((start, start + float(took["seconds"]) + _DELAY_SECONDS))
    return sorted(calls)

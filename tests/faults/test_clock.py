"""The wall clock is put forward and back while runs wait and go on."""

import os
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.fragile import LONG, Fragile, assert_whole, fragile_service, long_only, texts
from tests.support.lives import Connection, until
from tests.support.messages import scripted

# Hours by which the clock is off, one after the other; a batch expires after 24.
JUMPS = [3, -3, 20, 0, -48, 0] if LONG else [3, -3]
LEASE_SECONDS = 0.6
SLOW = {**scripted(say="a" * 60, step_ms=25), "stream": True}
RIGHT = {f"item-{place}": f"{place}" * 30 for place in range(len(JUMPS))}
ITEMS = {name: scripted(say=text, step_ms=20) for name, text in RIGHT.items()}


class Clock:
    """The clock of the processes that are started with `prefix`."""

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "clock", folder / "false_clock.so"
        source = Path(__file__).with_name("false_clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self.prefix = ["env", f"LD_PRELOAD={library}", f"FALSE_CLOCK={self._file}"]
        self._file.write_bytes(struct.pack("@l", 0))

    def put(self, hours: int) -> None:
        """Off by so much from now on."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("@l", hours * 3600))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    if shutil.which("cc") is None:
        reason = "there is no C compiler (Debian: apt-get install gcc libc6-dev)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Clock(tmp_path)


@pytest.fixture
def service(clock: Clock, tiny: Path, tmp_path: Path) -> Iterator[Fragile]:
    settings = {"lease_seconds": LEASE_SECONDS, "housekeeping_seconds": 0.2}
    with fragile_service(tiny, tmp_path / "data", prefix=clock.prefix, **settings) as running:
        yield running


def test_no_lease_is_lost_and_no_order(clock: Clock, service: Fragile) -> None:
    batch = service.create_batch(ITEMS)
    until(lambda: service.runs("running"))
    streams: list[Connection] = []
    for hours in JUMPS:
        clock.put(hours)
        streams.append(Connection(service.url, SLOW))
        streams[-1].run_id()
        streams[0].read_until(b"content_block_delta")
    for each in streams:
        assert each.read_to_end()[-1]["type"] == "message_stop"
        each.close()
    assert texts(service.results(batch)) == RIGHT
    runs = service.runs()
    assert {(run["state"], run["lost_leases"]) for run in runs} == {("succeeded", 0)}
    began, times = claims(service)
    asked = [each.run_id() for each in streams]
    assert [each for each in began if each in asked] == asked
    assert times != sorted(times), "no time was false"
    assert_whole(service)


def claims(service: Fragile) -> tuple[list[str], list[float]]:
    """The runs in the order in which they were claimed, and when that was, as they say."""
    with closing(sqlite3.connect(service.data_dir / "mererun.db")) as database:
        moves = "SELECT job_id, at FROM job_history WHERE to_state = 'running' ORDER BY seq"
        found = database.execute(moves).fetchall()
    return [id for id, _ in found], [at for _, at in found]


@long_only
def test_the_next_service_has_another_time(clock: Clock, service: Fragile) -> None:
    """Whoever holds the data folder knows that its predecessor is gone, whatever the clocks say."""
    batch = service.create_batch(ITEMS)
    for hours in (-5, 5):
        until(lambda: service.runs("running"))
        service.kill()
        clock.put(hours)
        service.start()
    assert texts(service.results(batch)) == RIGHT
    assert_whole(service)

"""What else goes on on the machine while a request is answered."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import psutil

from tools.throughput.processes import cpu_seconds

_EVERY_SECONDS = 0.2
# "steal" is what the host of a virtual machine gave to others.
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Limits:
    """Beyond any of these an attempt says nothing of the server. The units are those of `Seen`."""

    others_cpu: float = 0.10  # on average; an idle desktop takes a few hundredths
    available_memory: float = 0.05  # systems begin to swap below
    swap_grown_bytes: int = 0
    heat: float = 1.0


LIMITS = Limits()


@dataclass(frozen=True)
class Reading:
    """One look at the machine. `busy` and `ours` are seconds of CPU since it was started: of all
    processes, and of both servers and this tool. `heat` is None where no sensor can be read."""

    at: float
    busy: float
    ours: float
    available: float
    swap_bytes: int
    heat: float | None


@dataclass(frozen=True)
class Seen:
    """What was seen from before a request until after its answer; shares are of all cores, of all
    memory, and of the temperature that a sensor calls high."""

    readings: int
    others_cpu_mean: float
    others_cpu_max: float
    available_memory_mean: float
    available_memory_least: float
    swap_grown_bytes: int
    heat_mean: float | None
    heat_max: float | None

    @property
    def fault(self) -> str | None:
        """Why nothing measured meanwhile counts; nothing else decides that."""
        if self.others_cpu_mean > LIMITS.others_cpu:
            took = f"other processes took {self.others_cpu_mean:.0%} of the CPU"
            return f"{took}, more than {LIMITS.others_cpu:.0%}"
        if self.available_memory_least < LIMITS.available_memory:
            left = f"{self.available_memory_least:.1%} of the memory was left"
            return f"{left}, less than {LIMITS.available_memory:.0%}"
        if self.swap_grown_bytes > LIMITS.swap_grown_bytes:
            return f"{self.swap_grown_bytes} bytes were swapped out"
        if self.heat_max is not None and self.heat_max >= LIMITS.heat:
            return f"a sensor was at {self.heat_max:.0%} of what it calls high"
        return None


@contextmanager
def watching(listeners: Iterable[psutil.Process]) -> Iterator[list[Reading]]:
    """Readings from before the block until after it, and every 0.2 s in between."""
    readings = [_reading(listeners)]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            readings.append(_reading(listeners))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield readings
    finally:
        ended.set()
        thread.join()
        readings.append(_reading(listeners))


def seen_in(readings: Sequence[Reading]) -> Seen:
    """At least two readings, in a few figures."""
    first, last = readings[0], readings[-1]
    # Clocks of processes are coarse: over a short rest at the end they would show anything.
    steps = [(a, b) for a, b in pairwise(readings) if b.at - a.at >= _EVERY_SECONDS / 2]
    available = [each.available for each in readings]
    heat = [each.heat for each in readings if each.heat is not None]
    return Seen(
        readings=len(readings),
        others_cpu_mean=_others(first, last),
        others_cpu_max=max((_others(a, b) for a, b in steps), default=_others(first, last)),
        available_memory_mean=sum(available) / len(available),
        available_memory_least=min(available),
        swap_grown_bytes=max(each.swap_bytes for each in readings) - first.swap_bytes,
        heat_mean=sum(heat) / len(heat) if heat else None,
        heat_max=max(heat, default=None),
    )


def _others(a: Reading, b: Reading) -> float:
    taken = (b.busy - a.busy) - (b.ours - a.ours)
    return max(0.0, taken / ((b.at - a.at) * (psutil.cpu_count() or 1)))


def _reading(listeners: Iterable[psutil.Process]) -> Reading:
    ours, times, memory = cpu_seconds(listeners), psutil.cpu_times(), psutil.virtual_memory()
    return Reading(
        at=time.monotonic(),
        busy=sum(getattr(times, name, 0.0) for name in _BUSY),
        ours=ours,
        available=memory.available / memory.total,
        swap_bytes=psutil.swap_memory().used,
        heat=_heat(),
    )


def _heat() -> float | None:
    sensors = getattr(psutil, "sensors_temperatures", dict)()  # macOS has none for users
    shares = [each.current / each.high for found in sensors.values() for each in found if each.high]
    return max(shares, default=None)

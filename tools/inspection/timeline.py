"""Where the time of a run went."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage.job_state import JobState
from storage.verification import StoredRun


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """`source` says how the phases were measured."""

    phases: tuple[Phase, ...]
    source: str


def timeline(stored: StoredRun, events: Sequence[dict[str, Any]], now: float) -> Timeline:
    """As the engine measured it; for a run that it never reported on, as the events' times tell.

    `now` (unix seconds) ends what goes on.
    """
    measured, job = stored.telemetry, stored.job
    if measured is not None and measured.engine_seconds > 0:
        return Timeline(
            (
                Phase("queue", measured.queue_seconds),
                Phase("load", measured.load_seconds),
                Phase("prefill", measured.prefill_seconds),
                Phase("decode", measured.decode_seconds),
            ),
            "measured by the service (queue, load) and the engine (prefill, decode)",
        )
    ended = job.finished_at or now
    if job.state is JobState.INTERRUPTED and job.started_at is not None and events:
        ended = events[-1]["at"]  # its end was written by a later process
    started = job.started_at or ended
    phases = [Phase("queue", started - job.created_at)]
    if job.started_at is not None:
        prefilling = _first(events, "prefill") or _first(events, "tokens") or ended
        decoding = _first(events, "tokens") or ended
        phases += [
            Phase("load", prefilling - started),
            Phase("prefill", decoding - prefilling),
            Phase("decode", ended - decoding),
        ]
    return Timeline(tuple(phases), "by the clock, from the times of the record's events")


def _first(events: Sequence[dict[str, Any]], name: str) -> float | None:
    return next((event["at"] for event in events if event["event"] == name), None)

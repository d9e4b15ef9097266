"""Whether what is stored of a run in several places tells one story."""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from storage.answer_pieces import content_of, pieces_in
from storage.errors import StorageError
from storage.job import Job, Transition
from storage.job_state import MOVES, JobState
from storage.run_records import RunRecord, record_path
from storage.tables import as_prose
from storage.telemetry import Telemetry

# The states in which a record may lack its end: it may still come, or the run be continued.
_MAY_BE_OPEN = {JobState.QUEUED, JobState.RUNNING, JobState.INTERRUPTED}
_GOING_ON = {JobState.QUEUED, JobState.RUNNING}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What the database knows of one run."""

    job: Job
    history: Sequence[Transition]
    telemetry: Telemetry | None


@dataclass(frozen=True, slots=True)
class _Generated:
    """What a run's events say it generated; without content, that is a number of characters."""

    tokens: int
    content: list[dict[str, Any]] | int

    @classmethod
    def of(cls, events: Sequence[dict[str, Any]]) -> "_Generated":
        shown = [each for each in events if each["event"] in ("tokens", "results")]
        parts = [each for each in shown if each["event"] == "tokens"]
        if any("count" in each for each in parts):
            return cls(sum(each["count"] for each in parts), sum(each["chars"] for each in parts))
        pieces = (piece for each in shown for piece in pieces_in(each))
        return cls(sum(len(each["ids"]) for each in parts), content_of(pieces))


def disagreements(stored: StoredRun, data_dir: Path, *, shared: bool = False) -> list[str]:
    """One sentence for each thing about a run that does not fit the rest; empty when all does.

    Reads the run's record. A run that goes on must be read before its record, and may have moved
    on meanwhile: whoever finds a fault reads the row again before believing it. Of a run that may
    be of another machine that shares the database, `shared`, no record need be here.
    """
    job = stored.job
    path = data_dir / job.record
    found = [*_history(job, stored.history), *_telemetry_counts(job, stored.telemetry)]
    if path != record_path(data_dir, job.id, job.created_at):
        found.append(f"its row names the record of something else, {job.record}")
    if not path.is_dir():
        if shared or _needs_no_record(job):
            return found
        return [*found, f"its record {job.record} is missing"]
    try:
        return [*found, *exposures(path), *_record(stored, RunRecord.at(path), shared)]
    except StorageError as error:
        return [*found, str(error)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return [*found, f"its record has not the shape of one: {error!r}"]


def record_folders(data_dir: Path) -> Iterator[Path]:
    """The folder of every record, whether or not a row knows it."""
    return (path for path in (data_dir / "runs").glob("*/*/*/*") if path.is_dir())


def exposures(folder: Path) -> Iterator[str]:
    """What of a folder (0700) and the files in it (0600) has another mode."""
    for item in (folder, *sorted(each for each in folder.iterdir() if not each.is_dir())):
        wanted = 0o700 if item == folder else 0o600
        mode = stat.S_IMODE(item.stat().st_mode)
        if mode != wanted:
            yield f"{item} has mode {mode:04o}, not {wanted:04o}"


def _needs_no_record(job: Job) -> bool:
    """A batch's request has none before it is first claimed and prepared, if ever it is."""
    unprepared = job.batch_id is not None and job.input_tokens == 0
    return unprepared and job.state is not JobState.SUCCEEDED


def _history(job: Job, history: Sequence[Transition]) -> Iterator[str]:
    if not history:
        yield "it has no history"
        return
    first, last = history[0], history[-1]
    if (first.from_state, first.to_state, first.attempt) != (None, JobState.QUEUED, 0):
        yield f"its history begins with {_move(first)}"
    for before, after in pairwise(history):
        if after.from_state is not before.to_state:
            yield f"its history goes on with {_move(after)} after {_move(before)}"
        elif after.to_state not in MOVES[before.to_state]:
            yield f"its history has the move {_move(after)}, which no run can make"
        if after.attempt != before.attempt + (after.to_state is JobState.RUNNING):
            yield f"its history counts attempt {after.attempt} after {before.attempt}"
    # Forgotten by the row when it is queued again.
    started_at: float | None = None
    for each in history:
        if each.to_state is JobState.RUNNING:
            started_at = each.at
        elif each.to_state is JobState.QUEUED:
            started_at = None
    yield from _differences(
        "row",
        "history",
        {
            "state": (job.state.value, last.to_state.value),
            "attempt": (job.attempt, last.attempt),
            "created_at": (job.created_at, first.at),
            "started_at": (job.started_at, started_at),
            "finished_at": (job.finished_at, None if job.state in _GOING_ON else last.at),
        },
    )


def _telemetry_counts(job: Job, telemetry: Telemetry | None) -> Iterator[str]:
    # A run that was resumed keeps those of its first end until it has another on an engine.
    if telemetry is not None and job.state not in _GOING_ON and job.started_at is not None:
        yield from _differences(
            "row",
            "telemetry",
            {"output tokens": (job.output_tokens, telemetry.output_tokens)},
        )


def _record(stored: StoredRun, record: RunRecord, shared: bool) -> Iterator[str]:
    job = stored.job
    events, response = record.events(), record.response()
    record.request()
    yield from _prompt(job, record.prompt())
    if any(event["seq"] != place for place, event in enumerate(events, 1)):
        yield "its events are not numbered from 1 without a gap"
    if response is not None:
        yield from _answer(response, _Generated.of(events))
        yield from _told(events, response["message"]["usage"])
    if job.state in _GOING_ON:
        return
    claimed = _last_attempt(events)
    if shared and claimed < job.attempt:
        return  # another machine went on with it
    if response is not None:
        later = sum(each["tokens"] for each in events if each["event"] == "round")
        yield from _row_and_answer(job, response, later)
        if job.started_at is not None:
            yield from _telemetry_and_answer(stored.telemetry, response)
            yield from _telemetry_file(stored.telemetry, record.telemetry())
        yield from _differences("row", "events", {"attempt": (job.attempt, claimed)})
    elif job.state not in _MAY_BE_OPEN:
        yield f"it has {job.state}, but its record has no readable response.json"
    elif job.output_tokens is not None:
        generated = _Generated.of(events).tokens
        yield from _differences("row", "events", {"output tokens": (job.output_tokens, generated)})


def _prompt(job: Job, prompt: dict[str, Any]) -> Iterator[str]:
    if not prompt["tokens"]:
        return  # a batch's request that could not be prepared
    ids: list[int] | None = prompt["ids"]
    yield from _differences(
        "row",
        "prompt.json",
        {
            "model": (job.model, prompt["model"]),
            "input tokens": (job.input_tokens, prompt["tokens"]),
            "max_tokens": (job.max_tokens, prompt["max_tokens"]),
        },
    )
    if ids is not None and len(ids) != prompt["tokens"]:
        yield f"its prompt.json has {len(ids)} ids, and says {prompt['tokens']}"


def _answer(response: dict[str, Any], generated: _Generated) -> Iterator[str]:
    message = response["message"]
    answered: list[dict[str, Any]] | int = message["content"]
    if isinstance(generated.content, int):
        shapes = (each.get("text") or each.get("thinking") for each in message["content"])
        answered = sum(shape["chars"] for shape in shapes if shape)
    tokens = message["usage"]["output_tokens"]
    yield from _differences(
        "events", "response.json", {"output tokens": (generated.tokens, tokens)}
    )
    if generated.content != answered:
        yield "the content of its events is not that of its response.json"


def _told(events: Sequence[dict[str, Any]], usage: dict[str, Any]) -> Iterator[str]:
    """What clients were told of the prompt cache, when it was known, and at the end."""
    names = ("read", "created_5m", "created_1h")
    uses = [each for each in events if each["event"] == "cache"]  # one in each round
    told = {name: sum(each[name] for each in uses) for name in names}
    created = usage["cache_creation"]
    yield from _differences(
        "events",
        "response.json",
        {
            "cache read tokens": (told["read"], usage["cache_read_input_tokens"]),
            "5m cache tokens": (told["created_5m"], created["ephemeral_5m_input_tokens"]),
            "1h cache tokens": (told["created_1h"], created["ephemeral_1h_input_tokens"]),
            "cache creation tokens": (
                told["created_5m"] + told["created_1h"],
                usage["cache_creation_input_tokens"],
            ),
        },
    )


def _row_and_answer(job: Job, response: dict[str, Any], later_prompts_tokens: int) -> Iterator[str]:
    message: dict[str, Any] = response["message"]
    error: dict[str, Any] = response["error"] or {}
    usage = message["usage"]
    read = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    compared: dict[str, tuple[object, object]] = {
        "state": (job.state.value, response["state"]),
        "message id": (job.message_id, message["id"]),
        "model": (job.model, message["model"]),
        "stop reason": (job.stop_reason, message["stop_reason"]),
        "input tokens": (job.input_tokens + later_prompts_tokens, usage["input_tokens"] + read),
        "output tokens": (job.output_tokens or 0, usage["output_tokens"]),
    }
    # The row of a run cancelled in the queue has no error beside `cancel_reason`.
    if job.started_at or job.error_type:
        compared["error"] = (job.error_type, error.get("type"))
        said = error.get("message")
        compared["error message"] = (job.error_message, said and as_prose(said))
    yield from _differences("row", "response.json", compared)


def _telemetry_and_answer(row: Telemetry | None, response: dict[str, Any]) -> Iterator[str]:
    if row is not None:
        usage = response["message"]["usage"]
        read, created = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        yield from _differences(
            "telemetry row",
            "response.json",
            {
                "input tokens": (row.input_tokens, usage["input_tokens"] + read + created),
                "cache read tokens": (row.cache_read_tokens, read),
                "cache creation tokens": (row.cache_creation_tokens, created),
            },
        )


def _telemetry_file(row: Telemetry | None, file: dict[str, Any] | None) -> Iterator[str]:
    known = asdict(row) if row else {}
    # An earlier version knew of less.
    kept = asdict(Telemetry(**file)) if file else {}
    names = {**known, **kept}
    yield from _differences(
        "telemetry row", "telemetry.json", {n: (known.get(n), kept.get(n)) for n in names}
    )


def _last_attempt(events: Sequence[dict[str, Any]]) -> int:
    claims = [event["attempt"] for event in events if event["event"] == "claimed"]
    return claims[-1] if claims else 0


def _differences(one: str, other: str, compared: dict[str, tuple[object, object]]) -> Iterator[str]:
    for name, (here, there) in compared.items():
        if here != there:
            yield f"{name}: {here!r} in its {one}, {there!r} in its {other}"


def _move(transition: Transition) -> str:
    return f"{transition.from_state or 'nothing'} → {transition.to_state}"

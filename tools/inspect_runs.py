"""`tools/inspect-runs`, which is also `mererun runs`: what was asked, what was answered, whether
the books agree, what is kept, and what goes on."""

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import anyio
import click

from service.commands.amount import Amount
from service.commands.one_line import Refusal
from service.commands.options import data_dir_option, database_option, json_option
from service.settings import Settings
from storage.errors import StorageError
from storage.jobs import Job, JobState
from storage.retention import Keep, prune
from tools.inspection.archive import Archive, NoSuchRun, Wanted
from tools.inspection.conversation import last_words
from tools.inspection.replaying import replay
from tools.inspection.resuming import CannotResume, resume
from tools.inspection.showing import page
from tools.inspection.terminal import (
    coloured_state,
    disk,
    fitted,
    one_line,
    print_json,
    safe,
    seconds,
    time_of_day,
    width,
)
from tools.inspection.verifying import Verified, verify_all, verify_one

_DAY_SECONDS = 86400.0
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class _ListByDefault(click.Group):
    """Without a command, `list` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class _Moment(click.ParamType):
    """A local time in ISO format, or so long ago: `90s`, `15m`, `2h`, `3d`, `1w`."""

    name = "when"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        try:
            return time.time() - _seconds(value)
        except (ValueError, OverflowError):
            pass
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time like 2026-03-09T14:00 nor an age like 2h or 3d")


class _Age(click.ParamType):
    """A span of time: `90s`, `15m`, `2h`, `30d`, `1w`; in seconds."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        try:
            return _seconds(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not an age like 12h or 30d")


def _seconds(age: str) -> float:
    number, unit = age[:-1], age[-1:]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise ValueError(age)
    return timedelta(**{_UNITS[unit]: int(number)}).total_seconds()


def _of_store(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the `settings` that say where the runs are."""

    @data_dir_option
    @database_option
    @wraps(command)
    def with_settings(data_dir: Path, database_url: str | None, **options: Any) -> None:
        command(settings=Settings(data_dir=data_dir, database_url=database_url), **options)

    return with_settings


@click.group(cls=_ListByDefault)
def main() -> None:
    """Look at the runs of a mererun service, remove old ones, have one go on.

    It works while the service runs and without one. Without a command, it lists. An ID is a run's
    (run_…) or a message's (msg_…), or as much of its beginning as names one run.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot show a character, or a pipe
            stream.reconfigure(errors="backslashreplace")


@main.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice([*map(str, JobState)]))
@click.option("--model", help="Runs of this model.")
@click.option("--since", type=_Moment(), help="Runs that arrived since: a time, or an age like 2h.")
@click.option("--text", help="Runs whose request holds this text, in any case.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@json_option
@_of_store
def list_command(
    states: tuple[str, ...],
    model: str | None,
    since: float | None,
    text: str | None,
    limit: int,
    as_json: bool,
    settings: Settings,
) -> None:
    """List runs, the newest first."""
    wanted = Wanted(tuple(map(JobState, states)), model, since, text)

    async def work(archive: Archive) -> None:
        found: list[Job] = []
        async for job in archive.runs(wanted):
            found.append(job)
            if len(found) == limit:
                break
        if as_json:
            print_json([asdict(job) for job in found])
            return
        columns = width()
        names = max((len(safe(job.model)) for job in found), default=0)
        for job in found:
            click.echo(_row(job, archive.request(job), names, columns))

    _with_archive(settings, work)


@main.command("show")
@click.argument("id")
@json_option
@_of_store
def show_command(id: str, as_json: bool, settings: Settings) -> None:
    """Show the run ID: where its time went, what was asked, what was answered."""

    async def work(archive: Archive) -> None:
        stored = await archive.stored((await archive.find(id)).id)
        assert stored is not None
        record = archive.record(stored.job)
        events, response = record.events(), record.response()
        request = archive.request(stored.job)
        if not as_json:
            for line in page(stored, request, events, response, time.time()):
                click.echo(line)
            return
        whole = {
            "run": asdict(stored.job),
            "history": [asdict(each) for each in stored.history],
            "telemetry": asdict(stored.telemetry) if stored.telemetry else None,
            "request": request,
            "prompt": archive.prompt(stored.job),
            "events": events,
            "response": response,
        }
        print_json(whole)

    _with_archive(settings, work)


@main.command("replay")
@click.argument("id")
@click.option("--timing", is_flag=True, help="Take as long as it took, from the run's arrival on.")
@_of_store
def replay_command(id: str, timing: bool, settings: Settings) -> None:
    """Print the answer of the run ID as it streamed.

    Where the record keeps no content, a dot stands for each character.
    """

    async def work(archive: Archive) -> None:
        job = await archive.find(id)
        events = archive.record(job).events()
        begun = time.monotonic()
        await anyio.to_thread.run_sync(
            replay,
            events,
            lambda text: click.echo(safe(text), nl=False),
            (lambda at: time.sleep(max(0, begun + at - time.monotonic()))) if timing else None,
            abandon_on_cancel=True,
        )
        click.echo()
        _say_why(job)

    _with_archive(settings, work)


@main.command("verify")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Every run, as without an ID.")
@_of_store
def verify_command(ids: tuple[str, ...], every: bool, settings: Settings) -> None:
    """Check that row, history, telemetry and record of each run agree: of all, or of each ID.

    Prints a line for each finding, and then ends with exit code 1.
    """
    verified: list[Verified] = []

    def report(each: Verified) -> None:
        verified.append(each)
        for finding in each.findings:
            click.echo(f"{safe(each.name)}: {one_line(finding)}")

    async def work(archive: Archive) -> None:
        if ids and not every:
            for id in ids:
                report(await verify_one(archive, (await archive.find(id)).id))
        else:
            async for each in verify_all(archive):
                report(each)

    _with_archive(settings, work)
    if any(each.findings for each in verified):
        sys.exit(1)
    admitted = sum(each.admitted for each in verified)
    click.echo(f"{admitted} runs verified")
    if admitted < len(verified):
        click.echo(f"{len(verified) - admitted} requests never became a run", err=True)


@main.command("prune")
@click.option("--older-than", "age", type=_Age(), help="Runs that ended so long ago, like 30d.")
@click.option(
    "--keep-gib",
    "gib",
    type=Amount(0),
    help="The oldest runs, while all records take more disk than this.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@_of_store
def prune_command(age: float | None, gib: float | None, dry_run: bool, settings: Settings) -> None:
    """Remove runs that have ended, their rows and their records.

    A batch goes as a whole, once it has ended. Records that a service killed while it admitted a
    request left behind go too, after a day.
    """
    if age is None and gib is None:
        raise Refusal("say what to remove: --older-than 30d, --keep-gib 10, or both")
    keep = Keep(
        None if age is None else age / _DAY_SECONDS, None if gib is None else int(gib * (1 << 30))
    )

    async def work(archive: Archive) -> None:
        pruned = await prune(archive.db, archive.data_dir, keep, dry_run=dry_run)
        said = "would be removed" if dry_run else "removed"
        click.echo(f"{pruned.runs} runs {said}, {disk(pruned.bytes)}")
        if pruned.strays:
            click.echo(f"{pruned.strays} records of requests that never became a run {said}")

    _with_archive(settings, work, to_write=not dry_run)


@main.command("resume")
@click.argument("id")
@click.option("--model", help="The model's folder, if it is not installed and no service runs.")
@_of_store
def resume_command(id: str, model: str | None, settings: Settings) -> None:
    """Have the cancelled or interrupted run ID go on to its end, and print its answer.

    The service that works on the data folder does it, after what has a client waiting; where none
    does, it is done here and now. Without success, exit code 1.
    """
    ended: list[Job] = []

    async def work(archive: Archive) -> None:
        job = await archive.find(id)
        serving = replace(settings, model=model or job.model)
        ended.append(
            await resume(archive, job, serving, lambda text: click.echo(safe(text), nl=False))
        )
        click.echo()

    _with_archive(settings, work, to_write=True)
    if _say_why(ended[0]):
        sys.exit(1)


def _say_why(job: Job) -> bool:
    """Whether a run has no answer, which is said."""
    if job.state is JobState.SUCCEEDED:
        return False
    why = f": {safe(job.error_message)}" if job.error_message else ""
    click.echo(f"the run is {job.state}{why}", err=True)
    return True


def _row(job: Job, request: dict[str, Any] | None, names: int, columns: int) -> str:
    output = "-" if job.output_tokens is None else job.output_tokens
    took = "" if job.finished_at is None else seconds(job.finished_at - job.created_at)
    said = "(no readable record)" if request is None else one_line(last_words(request))
    before = f"{safe(job.id)}  "
    after = (
        f"  {time_of_day(job.created_at)}  {safe(job.model):<{names}}"
        f"  {job.input_tokens:>6} → {output:<5} {took:>9}  "
    )
    left = columns - len(before) - _STATE_COLUMNS - len(after)
    return f"{before}{coloured_state(job.state, _STATE_COLUMNS)}{after}{fitted(said, max(left, 8))}"


_STATE_COLUMNS = max(map(len, JobState))


def _with_archive(
    settings: Settings, work: Callable[[Archive], Awaitable[None]], *, to_write: bool = False
) -> None:
    async def opened() -> None:
        async with Archive.open(settings.data_dir, settings.database, to_write=to_write) as archive:
            await work(archive)

    try:
        anyio.run(opened)
    except (StorageError, NoSuchRun, CannotResume) as error:
        raise Refusal(safe(error)) from error


if __name__ == "__main__":
    main(prog_name="inspect-runs")

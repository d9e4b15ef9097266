"""`tools/inspect-runs`: what was asked, what was answered, and whether the books agree."""

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import anyio
import click

from service.commands.models import json_option
from service.commands.one_line import Refusal
from service.commands.user_path import UserPath
from service.settings import default_data_dir
from storage.errors import StorageError
from storage.jobs import Job, JobState
from tools.inspection.archive import Archive, NoSuchRun, Wanted
from tools.inspection.conversation import last_words
from tools.inspection.replaying import replay
from tools.inspection.showing import page
from tools.inspection.terminal import (
    coloured_state,
    fitted,
    one_line,
    print_json,
    safe,
    seconds,
    time_of_day,
    width,
)
from tools.inspection.verifying import Verified, verify_all, verify_one

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
        number, unit = value[:-1], value[-1:]
        try:
            if number.isascii() and number.isdigit() and unit in _UNITS:
                return time.time() - timedelta(**{_UNITS[unit]: int(number)}).total_seconds()
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time like 2026-03-09T14:00 nor an age like 2h or 3d")


_data_dir_option = click.option(
    "--data-dir",
    envvar="MERERUN_DATA_DIR",
    show_envvar=True,
    type=UserPath(file_okay=False),
    default=default_data_dir,
    show_default="$XDG_DATA_HOME/mererun",
    help="Where the service keeps its database and run records.",
)


@click.group(cls=_ListByDefault)
def main() -> None:
    """Look at the runs of a mererun service; nothing is changed.

    It works while the service runs and after a crash. Without a command, it lists. An ID is a
    run's (run_…) or a message's (msg_…), or as much of its beginning as names one run.
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
@_data_dir_option
def list_command(
    states: tuple[str, ...],
    model: str | None,
    since: float | None,
    text: str | None,
    limit: int,
    as_json: bool,
    data_dir: Path,
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

    _with_archive(data_dir, work)


@main.command("show")
@click.argument("id")
@json_option
@_data_dir_option
def show_command(id: str, as_json: bool, data_dir: Path) -> None:
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

    _with_archive(data_dir, work)


@main.command("replay")
@click.argument("id")
@click.option("--timing", is_flag=True, help="Take as long as it took, from the run's arrival on.")
@_data_dir_option
def replay_command(id: str, timing: bool, data_dir: Path) -> None:
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
        if job.state is not JobState.SUCCEEDED:
            why = f": {safe(job.error_message)}" if job.error_message else ""
            click.echo(f"the run is {job.state}{why}", err=True)

    _with_archive(data_dir, work)


@main.command("verify")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_data_dir_option
def verify_command(ids: tuple[str, ...], data_dir: Path) -> None:
    """Check that row, history, telemetry and record of each run agree: of all, or of each ID.

    Prints a line for each finding, and then ends with exit code 1.
    """
    verified: list[Verified] = []

    def report(each: Verified) -> None:
        verified.append(each)
        for finding in each.findings:
            click.echo(f"{safe(each.name)}: {one_line(finding)}")

    async def work(archive: Archive) -> None:
        if ids:
            for id in ids:
                report(await verify_one(archive, (await archive.find(id)).id))
        else:
            async for each in verify_all(archive):
                report(each)

    _with_archive(data_dir, work)
    if any(each.findings for each in verified):
        sys.exit(1)
    admitted = sum(each.admitted for each in verified)
    click.echo(f"{admitted} runs verified")
    if admitted < len(verified):
        click.echo(f"{len(verified) - admitted} requests never became a run", err=True)


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


def _with_archive(data_dir: Path, work: Callable[[Archive], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with Archive.open(data_dir) as archive:
            await work(archive)

    try:
        anyio.run(opened)
    except (StorageError, NoSuchRun) as error:
        raise Refusal(safe(error)) from error


if __name__ == "__main__":
    main(prog_name="inspect-runs")

"""`tools/qualify-coding`: whether Claude Code mends a small program with a model that is served.

What was done is told by files, tests and the results of tools, never by what the model says.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.qualification.arguments import parser, positive, refuse, run, server_of
from tools.qualification.coding.client import Client, Limits, NoClient
from tools.qualification.coding.report import Report
from tools.qualification.coding.session import Session, hold_session
from tools.qualification.coding.task import Task
from tools.qualification.coding.testing import Unusable, baseline_of
from tools.qualification.frozen import NotFrozen
from tools.qualification.server import NoServer, Server
from tools.qualification.writing import CannotWrite, new_folder, write_json, write_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold the sessions, report, and return 1 where some have failed."""
    options = _options(arguments)
    limits = Limits(options.timeout_s, options.max_turns, options.small_prompt)
    try:
        task = Task.read()
        client = Client.find(options.client)
        server = server_of(options)
        new_folder(options.evidence)
        baseline = baseline_of(task)
    except (NotFrozen, Unusable, NoClient, NoServer, CannotWrite) as error:
        refuse("qualify-coding", error)
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    try:
        for name, tested in baseline.items():
            write_text(options.evidence / f"baseline-{name}.txt", tested.output)
        sessions = list(_sessions(task, client, server, limits, options))
        gone = not server.is_there()
        seconds = round(time.monotonic() - clock, 1)
        report = Report(server, client, limits, task, baseline, began, seconds, sessions, gone)
        print(report.summary())
        write_json(options.evidence / "report.json", report.as_json())
        write_text(options.evidence / "report.md", report.as_page())
    except (CannotWrite, OSError) as error:
        print(f"qualify-coding: {error}", file=sys.stderr)
        return 1
    return 0 if report.passed else 1


def _sessions(
    task: Task, client: Client, server: Server, limits: Limits, options: argparse.Namespace
) -> Iterator[Session]:
    gone = False
    for number in range(1, options.runs + 1):
        if gone:
            yield Session("not run")
            continue
        print(f"run {number} of {options.runs} ...", file=sys.stderr)
        session = hold_session(task, client, server, limits, options.evidence / f"run-{number}")
        gone = session.verdict == "failed" and not server.is_there()
        yield session


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser("qualify-coding", __doc__, max_tokens=32_000)
    options.add_argument(
        "--evidence",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="a new folder for the report, transcripts, changes and outputs of tests",
    )
    options.add_argument(
        "--client", default="claude", metavar="PATH", help="Claude Code; `claude` by default"
    )
    options.add_argument(
        "--small-prompt", action="store_true", help="with the client's short prompt (--bare)"
    )
    options.add_argument("--runs", type=positive, default=1, metavar="N", help="how many sessions")
    options.add_argument(
        "--timeout-s", type=positive, default=900, metavar="N", help="of a session; 900 by default"
    )
    options.add_argument(
        "--max-turns", type=positive, default=20, metavar="N", help="of a session; 20 by default"
    )
    return options.parse_args(arguments)


if __name__ == "__main__":
    run(main)

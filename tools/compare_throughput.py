"""`tools/compare-throughput`: whether one running Messages server is faster than another.

Both are on this machine, which should have nothing else to do, and are asked in turns, one request
at a time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from tools.qualification.arguments import (
    add_key_file,
    add_only,
    add_reports,
    key_of,
    positive,
    refuse,
    run,
)
from tools.qualification.server import NoServer, find
from tools.qualification.writing import CannotWrite, check_place, write_reports
from tools.throughput.attempts import Role
from tools.throughput.processes import check_here, listening
from tools.throughput.report import Report
from tools.throughput.rounds import Rounds
from tools.throughput.workloads import WORKLOADS

_ROLES: tuple[Role, ...] = ("reference", "candidate")
_CODES = {"gain": 0, "no gain": 1, "not measured": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report, and return 0 for a gain, 1 for none, 2 where it could not be measured."""
    options = _options(arguments)
    try:
        for path in filter(None, (options.json, options.page)):
            check_place(path)
        rounds = _rounds_of(options)
    except (CannotWrite, NoServer) as error:
        refuse("compare-throughput", error)
    workloads = [each for each in WORKLOADS.values() if each.name in options.only]
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    rounds.ask(workloads, options.runs)
    report = Report(rounds, workloads, options.runs, began, round(time.monotonic() - clock, 1))
    print(report.summary())
    try:
        write_reports(report, options.json, options.page)
    except CannotWrite as error:
        print(f"compare-throughput: {error}", file=sys.stderr)
        return 2
    return _CODES[report.verdict]


def _rounds_of(options: argparse.Namespace) -> Rounds:
    """The servers that the options name, with their processes. Raises NoServer."""
    given = vars(options)
    for role in _ROLES:
        check_here(given[role])  # before a key is sent anywhere
    key = key_of(options)
    servers, listeners = {}, {}
    for role in _ROLES:
        url, model, option = given[role], given[f"{role}_model"], f"--{role}-model"
        servers[role] = find(url, model, 1, None, key, model_option=option)
        listeners[role] = listening(url)
    return Rounds(servers, listeners)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="compare-throughput", description=__doc__)
    where, which = "such as http://127.0.0.1:8765", "by default the first that it lists"
    for role in _ROLES:
        options.add_argument(role, metavar=f"{role.upper()}_URL", help=where)
        options.add_argument(f"--{role}-model", metavar="NAME", help=which)
    add_key_file(options)
    options.add_argument(
        "--runs", type=positive, default=5, metavar="N", help="samples of each block; 5 by default"
    )
    add_only(options, "workloads to measure", list(WORKLOADS))
    add_reports(options)
    return options.parse_args(arguments)


if __name__ == "__main__":
    run(main)

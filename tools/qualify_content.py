"""`tools/qualify-content`: how often a model fails 20 frozen questions, beside other models.

A candidate is worse where it fails any of them more often than each of its references did.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.qualification.arguments import parser, positive, refuse, run, server_of
from tools.qualification.content.attempts import Attempt, attempt
from tools.qualification.content.cohort import (
    Cohort,
    Incomparable,
    as_json,
    asked_of,
    failures,
    reference,
    worse,
)
from tools.qualification.content.fixtures import Fixture, fixtures
from tools.qualification.frozen import NotFrozen
from tools.qualification.sdk import anthropic
from tools.qualification.server import NoServer, Server
from tools.qualification.table import table
from tools.qualification.writing import CannotWrite, check_place, write_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, grade, report, and return 1 where the candidate is worse, or some answers never came."""
    options = _options(arguments)
    try:
        frozen = fixtures()
        settings = {each: getattr(options, each) for each in ("runs", "max_tokens", "effort")}
        asked = asked_of(frozen, **settings)
        references = [reference(path, asked) for path in options.reference]
        check_place(options.report)
        server = server_of(options)
    except (NotFrozen, Incomparable, CannotWrite, NoServer) as error:
        refuse("qualify-content", error)
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    attempts = _attempts(server, frozen, options.runs)
    failed = {name: failures(each) for name, each in attempts.items()}
    lost = worse(failed, references)
    report = as_json(
        asked,
        attempts,
        server=server.url,
        model=server.model,
        sdk=f"anthropic {anthropic.__version__}",
        began=began,
        seconds=round(time.monotonic() - clock, 1),
        references=[
            {"file": str(path), "model": each.name}
            for path, each in zip(options.reference, references, strict=True)
        ],
        worse=lost,
    )
    print(_page(server, attempts, references, lost))
    if not report["complete"]:
        print("qualify-content: the server did not answer everything", file=sys.stderr)
    try:
        write_json(options.report, report)
    except CannotWrite as error:
        print(f"qualify-content: {error}", file=sys.stderr)
        return 1
    return int(bool(lost) or not report["complete"])


def _attempts(
    server: Server, frozen: Sequence[Fixture], runs: int
) -> Mapping[str, Sequence[Attempt]]:
    """All fixtures in each run, so that what changes on a server with time meets them alike."""
    attempts: dict[str, list[Attempt]] = {each.name: [] for each in frozen}
    gone = False
    for turn in range(1, runs + 1):
        for fixture in frozen:
            if gone:
                made = Attempt("not run", "the server is gone")
            else:
                print(f"run {turn} of {runs}: {fixture.name} ...", file=sys.stderr)
                made = attempt(server, fixture)
                gone = made.verdict == "unanswered" and not server.is_there()
            attempts[fixture.name].append(made)
    return attempts


def _page(
    server: Server,
    attempts: Mapping[str, Sequence[Attempt]],
    references: Sequence[Cohort],
    lost: Sequence[str],
) -> str:
    """Failures of each fixture, beside those of the references, and why the first ones were."""
    heading = ("fixture", server.model, *(each.name for each in references), "worse", "first fault")
    rows = [
        (
            name,
            f"{failures(each)} of {len(each)}",
            *(str(cohort.failures[name]) for cohort in references),
            "worse" if name in lost else "",
            next((one.why or "" for one in each if one.verdict != "passed"), "")[:100],
        )
        for name, each in attempts.items()
    ]
    good = sum(not failures(each) for each in attempts.values())
    return f"{table(heading, rows)}\n\n{good} of {len(rows)} fixtures never failed"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser("qualify-content", __doc__, max_tokens=512)
    options.add_argument(
        "--report", type=Path, required=True, metavar="FILE", help="write the JSON report here"
    )
    options.add_argument(
        "--runs", type=positive, default=1, metavar="N", help="how often each is asked"
    )
    options.add_argument(
        "--reference",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="reports to be no worse than, of as many runs",
    )
    return options.parse_args(arguments)


if __name__ == "__main__":
    run(main)

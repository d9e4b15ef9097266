"""`tools/qualify-messages`: whether a running Messages server does what the API promises.

Only HTTP is used, by the official SDK. What the model makes of questions is told apart, and no
verdict depends on it.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from tools.qualification.arguments import (
    add_only,
    add_reports,
    parser,
    refuse,
    run,
    server_of,
)
from tools.qualification.check import Check, Result, perform
from tools.qualification.checks import (
    cache,
    cancellation,
    capabilities,
    counting,
    documents,
    images,
    protocol,
    recovery,
    search,
)
from tools.qualification.report import Report
from tools.qualification.server import NoServer, Server
from tools.qualification.writing import CannotWrite, check_place, write_reports

_MODULES = (
    protocol,
    counting,
    cache,
    search,
    documents,
    images,
    capabilities,
    cancellation,
    recovery,
)
_CHECKS = [check for module in _MODULES for check in module.CHECKS]
_AREAS = list(dict.fromkeys(check.area for check in _CHECKS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, report, and return 1 when something failed or the server was gone before the end."""
    options = _options(arguments)
    try:
        for path in filter(None, (options.json, options.page)):
            check_place(path)
        server = server_of(options)
    except (CannotWrite, NoServer) as error:
        refuse("qualify-messages", error)
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    results = list(_results([each for each in _CHECKS if each.area in options.only], server))
    gone = any(each.verdict == "not run" for each in results) or not server.is_there()
    report = Report(server, began, round(time.monotonic() - clock, 1), results, gone)
    print(report.summary())
    try:
        write_reports(report, options.json, options.page)
    except CannotWrite as error:
        print(f"qualify-messages: {error}", file=sys.stderr)
        return 1
    return 0 if report.good and not gone else 1


def _results(checks: Iterable[Check], server: Server) -> Iterator[Result]:
    gone = False
    for check in checks:
        if gone:
            yield Result(check.area, check.name, "not run", "the server is gone")
            continue
        print(f"{check.area}: {check.name} ...", file=sys.stderr)
        result = perform(check, server)
        gone = result.verdict == "failed" and not server.is_there()
        yield result


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser("qualify-messages", __doc__, max_tokens=256)
    add_only(options, "areas to check", _AREAS)
    add_reports(options)
    return options.parse_args(arguments)


if __name__ == "__main__":
    run(main)

"""`tools/bench-service`: the service's figures against their bars, measured on this machine.

For developers: it uses the tests' support for a service over an engine without a model. Let
nothing else run on the machine meanwhile.
"""

import argparse
import json
import sys
from pathlib import Path

from models.catalog import DEFAULT_MODEL, CheckpointError, resolve
from service.settings import default_data_dir
from tests.support.running import REPOSITORY
from tools.bench.batch import batch
from tools.bench.cancelling import cancelling
from tools.bench.documents import documents
from tools.bench.editing import editing
from tools.bench.engine_speed import engine_speed
from tools.bench.event_loop import event_loop
from tools.bench.figure import Figure, table
from tools.bench.grammar import grammar_cost
from tools.bench.job_cost import job_cost
from tools.bench.machine import machine
from tools.bench.parsing import parsing
from tools.bench.preemption import preemption
from tools.bench.queued_streams import queued_streams
from tools.bench.resume import resume
from tools.bench.searching import searching
from tools.bench.services import places
from tools.bench.store import store
from tools.bench.writers import writers

_PARTS = {
    "engine-speed": engine_speed,
    "job-cost": job_cost,
    "queued-streams": queued_streams,
    "cancelling": cancelling,
    "event-loop": event_loop,
    "store": store,
    "writers": writers,
    "preemption": preemption,
    "resume": resume,
    "batch": batch,
    "grammar": grammar_cost,
    "parsing": parsing,
    "editing": editing,
    "documents": documents,
    "search": searching,
}


def main() -> int:
    """Measure, print, and return 1 when a bar was missed."""
    options = _options()
    try:
        checkpoint = resolve(str(options.model), options.model.parent)
    except CheckpointError as error:
        print(f"bench-service: {error}", file=sys.stderr)
        return 2
    facts = machine() | {"model": checkpoint.id}
    figures: list[Figure] = []
    with places() as given:
        for name in options.only:
            print(f"measuring {name} ...", file=sys.stderr)
            figures.extend(_PARTS[name](checkpoint, given, options.quick))
    if options.json:
        kept = {"machine": facts, "figures": [each.as_json() for each in figures]}
        print(json.dumps(kept, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
        print(table(figures))
    return int(any(each.passed is False for each in figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-service", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=_PARTS,
        default=list(_PARTS),
        metavar="NAME",
        help=f"parts to measure: {', '.join(_PARTS)}",
    )
    parser.add_argument("--model", type=Path, default=_default_model(), help="a model folder")
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: does it work at all?"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    options.model = options.model.resolve()
    return options


def _default_model() -> Path:
    """Where the tests install the default model, or else where `mererun` does."""
    tested = REPOSITORY / "build" / "test-data" / "models" / DEFAULT_MODEL
    return tested if tested.exists() else default_data_dir() / "models" / DEFAULT_MODEL


if __name__ == "__main__":
    sys.exit(main())

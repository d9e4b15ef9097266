"""The command of a bench, with parts that measure each of the models of the tests, and others."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping

from models.catalog import Checkpoint, CheckpointError, resolve
from tests.support.running import REPOSITORY
from tools.bench.figure import Figure, table
from tools.bench.machine import machine
from tools.bench.services import Places, places

MODELS_DIR = REPOSITORY / "build" / "test-data" / "models"
_MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct")

OfModel = Callable[[Checkpoint, Places, bool], Iterator[Figure]]
Other = Callable[[Places, bool], Iterator[Figure]]


def main_of(
    name: str,
    description: str | None,
    of_each_model: Mapping[str, OfModel],
    others: Mapping[str, Other] | None = None,
) -> int:
    """Measure, print, and return 1 when a bar was missed."""
    others = others or {}
    options = _options(name, description, [*of_each_model, *others])
    facts = machine()
    figures: list[Figure] = []
    with places() as given:
        for part in options.only:
            print(f"measuring {part} ...", file=sys.stderr)
            if part in others:
                figures.extend(others[part](given, options.quick))
                continue
            try:
                models = [resolve(model, MODELS_DIR) for model in options.model]
            except CheckpointError as error:
                print(f"{name}: {error}; the tests install it", file=sys.stderr)
                return 2
            for model in models:
                figures.extend(of_each_model[part](model, given, options.quick))
    if options.json:
        kept = {"machine": facts, "figures": [each.as_json() for each in figures]}
        print(json.dumps(kept, indent=2))
    else:
        print("\n".join(f"{fact}: {value}" for fact, value in facts.items()), end="\n\n")
        print(table(figures))
    return int(any(each.passed is False for each in figures))


def _options(name: str, description: str | None, parts: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=parts,
        default=parts,
        metavar="NAME",
        help=f"parts to measure: {', '.join(parts)}",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        choices=_MODELS,
        default=_MODELS,
        metavar="NAME",
        help=f"models to measure: {', '.join(_MODELS)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: does it work at all?"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args()

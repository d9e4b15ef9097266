"""`tools/bench-cache`: the prompt cache's figures against their bars, measured on this machine.

For developers: it uses the tests' support, and the models that the tests install. Let nothing else
run on the machine meanwhile. `tools/bench_cache_device.py` is for machines with a GPU.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator

from models.catalog import Checkpoint, CheckpointError, resolve
from tests.support.running import REPOSITORY
from tools.bench.cache_in_memory import lookup, memory
from tools.bench.figure import Figure, table
from tools.bench.first_token import first_token
from tools.bench.machine import machine
from tools.bench.services import Places, places
from tools.bench.tool_turns import random_tool_turns, tool_turns

_MODELS_DIR = REPOSITORY / "build" / "test-data" / "models"
_MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct")

OfModel = Callable[[Checkpoint, Places, bool], Iterator[Figure]]
_OF_EACH_MODEL: dict[str, OfModel] = {
    "first-token": first_token,
    "tool-turns": tool_turns,
    "memory": memory,
}
_OTHERS: dict[str, Callable[[Places, bool], Iterator[Figure]]] = {
    "random-tool-turns": random_tool_turns,
    "lookup": lookup,
}
_PARTS = [*_OF_EACH_MODEL, *_OTHERS]


def main() -> int:
    """Measure, print, and return 1 when a bar was missed."""
    options = _options()
    facts = machine()
    figures: list[Figure] = []
    with places() as given:
        for name in options.only:
            print(f"measuring {name} ...", file=sys.stderr)
            if name in _OTHERS:
                figures.extend(_OTHERS[name](given, options.quick))
                continue
            try:
                models = [resolve(model, _MODELS_DIR) for model in _MODELS]
            except CheckpointError as error:
                print(f"bench-cache: {error}; the tests install it", file=sys.stderr)
                return 2
            for model in models:
                figures.extend(_OF_EACH_MODEL[name](model, given, options.quick))
    if options.json:
        kept = {"machine": facts, "figures": [each.as_json() for each in figures]}
        print(json.dumps(kept, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
        print(table(figures))
    return int(any(each.passed is False for each in figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-cache", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=_PARTS,
        default=_PARTS,
        metavar="NAME",
        help=f"parts to measure: {', '.join(_PARTS)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: does it work at all?"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

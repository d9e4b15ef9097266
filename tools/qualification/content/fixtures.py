"""The frozen fixtures: questions with one right answer each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.qualification.frozen import read_frozen, sha256

_FOLDER = Path(__file__).parent
_GRADERS = "graders.py"


@dataclass(frozen=True)
class Fixture:
    """A case: what a request has beside model and budget, and what its answer must be."""

    name: str
    request: dict[str, Any]
    grader: dict[str, Any]
    case_sha256: str
    graders_sha256: str


def fixtures() -> list[Fixture]:
    """All of them, in the order of their names. Raises NotFrozen."""
    found = [f"cases/{path.name}" for path in (_FOLDER / "cases").glob("*")]
    read = read_frozen(_FOLDER, found)
    graders = sha256(read.pop(_GRADERS))
    cases = {name: json.loads(data) for name, data in sorted(read.items())}
    return [
        Fixture(Path(name).stem, case["request"], case["grader"], sha256(read[name]), graders)
        for name, case in cases.items()
    ]

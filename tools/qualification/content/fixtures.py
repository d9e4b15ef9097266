"""The frozen fixtures: questions with one right answer each."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_FROZEN = "SHA256SUMS"
_GRADERS = "graders.py"


class NotFrozen(Exception):
    """A fixture is not what it was when it was frozen; the message says which."""


@dataclass(frozen=True)
class Fixture:
    """A case: what a request has beside model and budget, and what its answer must be."""

    name: str
    request: dict[str, Any]
    grader: dict[str, Any]
    case_sha256: str
    graders_sha256: str


def fixtures() -> list[Fixture]:
    """All of them, in the order of their names; each file is read once, and what was read is what
    is compared with the frozen list. Raises NotFrozen."""
    try:
        lines = (_FOLDER / _FROZEN).read_text().splitlines()
        frozen = {name: digest for digest, name in map(str.split, lines)}
        names = {f"cases/{path.name}" for path in (_FOLDER / "cases").glob("*")} | {_GRADERS}
        read = {name: (_FOLDER / name).read_bytes() for name in names | frozen.keys()}
    except (OSError, ValueError) as error:
        raise NotFrozen(f"the fixtures cannot be read: {error}") from None
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in read.items()}
    changed = sorted(name for name in read if frozen.get(name) != digests[name])
    if changed:
        raise NotFrozen(f"not as frozen in {_FROZEN}: {', '.join(changed)}; put the files back")
    cases = {name: json.loads(data) for name, data in sorted(read.items()) if name != _GRADERS}
    return [
        Fixture(Path(name).stem, case["request"], case["grader"], digests[name], digests[_GRADERS])
        for name, case in cases.items()
    ]

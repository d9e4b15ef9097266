"""One session: the client in a fresh copy of the project, and what it leaves as evidence."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tools.qualification.coding.client import Client, Limits
from tools.qualification.coding.files import Files, read_files, write_files
from tools.qualification.coding.outcomes import Outcome, Played, outcomes
from tools.qualification.coding.task import Task
from tools.qualification.coding.testing import run_tests
from tools.qualification.coding.transcript import Transcript
from tools.qualification.coding.transport import Transport, transport_of
from tools.qualification.server import Server
from tools.qualification.writing import new_folder, write_text

_OUTPUT_SHOWN = 20_000  # characters of what the tests print, the last ones
_WHY_SHOWN = 500  # characters


@dataclass(frozen=True)
class Session:
    """What came of it: it has passed where all outcomes have. `added` are files that the project
    did not have before."""

    verdict: Literal["passed", "failed", "not run"]
    outcomes: Sequence[Outcome] = ()
    added: Sequence[str] = ()
    transport: Transport | None = None
    seconds: float = 0.0


def hold_session(
    task: Task, client: Client, server: Server, limits: Limits, evidence: Path
) -> Session:
    """Begin it, wait for its end, and look what it has done. Raises CannotWrite for evidence."""
    new_folder(evidence)
    with TemporaryDirectory(prefix="qualify-coding-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary).resolve()
        write_files(folder / "home", {})
        write_files(folder / "project", task.project)
        ended = client.work(task.prompt, folder / "project", folder / "home", server, limits)
        files = read_files(folder / "project")
    visible, hidden = (run_tests(each, files) for each in (task.tests, task.unseen))
    transcript = Transcript.read(ended.out)
    found = outcomes(task, Played(ended, transcript, files, visible, hidden))
    transport = transport_of(transcript)
    # What the client knows, its commands know, and could have written down. It is taken out of what
    # is kept, after the verdicts, which it could change, and before any cut, which could halve it.
    kept = partial(_without, server.key)
    for name, text in (
        ("transcript.jsonl", kept(ended.out)),
        ("stderr.txt", kept(ended.err)),
        ("project.diff", kept(_difference(task.project, files))),
        ("visible-tests.txt", kept(visible.output)[-_OUTPUT_SHOWN:]),
        ("hidden-tests.txt", kept(hidden.output)[-_OUTPUT_SHOWN:]),
    ):
        write_text(evidence / name, text)
    return Session(
        "failed" if any(each.why for each in found) else "passed",
        [replace(each, why=each.why and kept(each.why)[:_WHY_SHOWN]) for each in found],
        [kept(name) for name in sorted(files.keys() - task.project.keys())],
        replace(
            transport,
            retries=kept(transport.retries),
            error=transport.error and kept(transport.error)[:_WHY_SHOWN],
        ),
        ended.seconds,
    )


def _without(key: str | None, value: Any) -> Any:
    """A text, or what is in lists and objects, with no key in it, as it is or as JSON has it."""
    match value:
        case str():
            for secret in (key, json.dumps(key)[1:-1]) if key else ():
                value = value.replace(secret, "[key]")
            return value
        case list():
            return [_without(key, each) for each in value]
        case dict():
            return {_without(key, name): _without(key, each) for name, each in value.items()}
        case _:
            return value


def _difference(before: Files, after: Files) -> str:
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (each.get(name, b"").decode(errors="replace") for each in (before, after))
        lines += difflib.unified_diff(
            was.splitlines(), now.splitlines(), f"before/{name}", f"after/{name}", lineterm=""
        )
    return "".join(f"{line}\n" for line in lines)

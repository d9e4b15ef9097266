"""One session: the client in a fresh copy of the project, and what it leaves as evidence."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from tools.qualification.coding.client import Client, Limits
from tools.qualification.coding.files import Files, read_files, write_files
from tools.qualification.coding.outcomes import Outcome, Played, outcomes
from tools.qualification.coding.task import Task
from tools.qualification.coding.testing import Tested, run_tests
from tools.qualification.coding.transcript import Transcript
from tools.qualification.coding.transport import Transport, transport_of
from tools.qualification.server import Server
from tools.qualification.writing import new_folder, write_text


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
    # What the client knows, its commands know, and could have written down.
    files = {_without(server.key, name): data for name, data in files.items()}
    ended = replace(ended, out=_without(server.key, ended.out), err=_without(server.key, ended.err))
    visible, hidden = (_tested(each, files, server.key) for each in (task.tests, task.unseen))
    for name, text in (
        ("transcript.jsonl", ended.out),
        ("stderr.txt", ended.err),
        ("project.diff", _without(server.key, _difference(task.project, files))),
        ("visible-tests.txt", visible.output),
        ("hidden-tests.txt", hidden.output),
    ):
        write_text(evidence / name, text)
    transcript = Transcript.read(ended.out)
    found = outcomes(task, Played(ended, transcript, files, visible, hidden))
    return Session(
        "failed" if any(each.why for each in found) else "passed",
        found,
        sorted(files.keys() - task.project.keys()),
        transport_of(transcript),
        ended.seconds,
    )


def _tested(tests: Files, program: Files, key: str | None) -> Tested:
    tested = run_tests(tests, program)
    return replace(tested, output=_without(key, tested.output))


def _without(key: str | None, text: str) -> str:
    """The text with no key in it, as it is or as JSON has it."""
    for secret in (key, json.dumps(key)[1:-1]) if key else ():
        text = text.replace(secret, "[key]")
    return text


def _difference(before: Files, after: Files) -> str:
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = (each.get(name, b"").decode(errors="replace") for each in (before, after))
        lines += difflib.unified_diff(
            was.splitlines(), now.splitlines(), f"before/{name}", f"after/{name}", lineterm=""
        )
    return "".join(f"{line}\n" for line in lines)

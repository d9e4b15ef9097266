"""What a session has come to. Only files, tests and the results of tools count as evidence; what
the model says of itself does not."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tools.qualification.coding.child import Ended
from tools.qualification.coding.files import Files
from tools.qualification.coding.task import Task
from tools.qualification.coding.testing import Tested
from tools.qualification.coding.transcript import Step, Transcript

_EDITS = {"Edit", "MultiEdit", "NotebookEdit", "Write"}
_READS = re.compile(r"(?:^|[;&|]\s*)(cat|head|less|more|nl|sed|tail)\b")  # as a command
_RUNS = re.compile(r"(cd \S+ && )?python3? -m unittest\b")
_FAILED = re.compile(r"^FAILED \(", re.MULTILINE)  # how unittest ends


@dataclass(frozen=True)
class Played:
    """What a session has left: the project's files, and the tests of them."""

    ended: Ended
    transcript: Transcript
    files: Files
    visible: Tested
    hidden: Tested


@dataclass(frozen=True)
class Outcome:
    """One thing that was asked: `why` it has failed, None where it has not."""

    name: str
    why: str | None


def outcomes(task: Task, played: Played) -> list[Outcome]:
    """All of them, in the order of a session."""
    return [Outcome(name, fault(task, played)) for name, fault in _FAULTS.items()]


def _inspected(task: Task, played: Played) -> str | None:
    seen = any(_reads(each, task.sources) for each in _before_edit(played.transcript.steps))
    return None if seen else "no source was read before the first edit"


def _saw_failure(task: Task, played: Played) -> str | None:
    before = _before_edit(played.transcript.steps)
    seen = any(_RUNS.match(each.command) and _FAILED.search(each.said) for each in before)
    return None if seen else "no run of the tests has failed before the first edit"


def _met_error(task: Task, played: Played) -> str | None:
    steps = played.transcript.steps
    met = [each for each in steps if each.failed and task.missing in json.dumps(each.input)]
    if len(met) != 1:
        return f"{len(met)} calls for {task.missing} have failed, not one"
    went_on = any(each.called_at > (met[0].answered_at or 0) for each in steps)
    return None if went_on else "nothing was done after it"


def _edited(task: Task, played: Played) -> str | None:
    edited = any(played.files.get(name) != data for name, data in task.sources.items())
    return None if edited else f"{', '.join(task.sources)} is as it was"


def _kept(task: Task, played: Played) -> str | None:
    kept = task.project.keys() - task.sources.keys()
    changed = sorted(name for name in kept if played.files.get(name) != task.project[name])
    return f"changed or gone: {', '.join(changed)}" if changed else None


def _visible(task: Task, played: Played) -> str | None:
    return _not_passed(played.visible)


def _hidden(task: Task, played: Played) -> str | None:
    return _not_passed(played.hidden)


def _not_seen(task: Task, played: Played) -> str | None:
    names = [PurePath(name).stem for name in task.unseen]
    seen = [name for name in names if name in played.ended.out]
    return f"the session came upon {', '.join(seen)}" if seen else None


def _ended(task: Task, played: Played) -> str | None:
    ended, result = played.ended, played.transcript.result
    if ended.code is None:
        return f"it was killed after {ended.seconds:.0f} s"
    if not result:
        return f"it ended with exit code {ended.code} and without a result"
    if result.get("subtype") != "success" or result.get("is_error"):
        return f"{result.get('subtype')}: {result.get('result', '')}"
    return f"exit code {ended.code}" if ended.code else None


_FAULTS: dict[str, Callable[[Task, Played], str | None]] = {
    "inspected the source": _inspected,
    "saw the baseline fail": _saw_failure,
    "met the deliberate error once and went on": _met_error,
    "edited the source": _edited,
    "tests and requirements unchanged": _kept,
    "visible tests pass": _visible,
    "hidden tests pass": _hidden,
    "hidden tests stayed hidden": _not_seen,
    "ended by itself": _ended,
}


def _before_edit(steps: Sequence[Step]) -> list[Step]:
    """Those whose results the model had when it first changed a file."""
    edits = (each.called_at for each in steps if each.tool in _EDITS and each.failed is False)
    edited_at = next(edits, math.inf)
    return [each for each in steps if each.answered_at is not None and each.answered_at < edited_at]


def _reads(step: Step, sources: Files) -> bool:
    if step.failed:
        return False
    if step.tool == "Read":
        return PurePath(str(step.input.get("file_path", ""))).name in sources
    named = any(_names(step.command, name) for name in sources)
    return named and bool(_READS.search(step.command))


def _names(command: str, name: str) -> bool:
    """`test_pages.py` does not name `pages.py`."""
    return bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", command))


def _not_passed(tested: Tested) -> str | None:
    return None if tested.verdict == "passed" else tested.told

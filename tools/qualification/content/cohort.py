"""The attempts of one model at all fixtures, as a report keeps them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.qualification.content.attempts import Attempt
from tools.qualification.content.fixtures import Fixture

TOOL, FORMAT = "qualify-content", 1
_ANSWERED = ("passed", "failed", "refused")


class Incomparable(Exception):
    """A reference report says nothing about this candidate; the message says why."""


@dataclass(frozen=True)
class Cohort:
    """A model, and how often it failed each fixture."""

    name: str
    failures: Mapping[str, int]


def asked_of(fixtures: Sequence[Fixture], **settings: Any) -> dict[str, Any]:
    """What must be the same for two cohorts to be compared."""
    return {
        **settings,
        "cases": {each.name: each.case_sha256 for each in fixtures},
        "graders": fixtures[0].graders_sha256,
    }


def failures(attempts: Sequence[Attempt]) -> int:
    """What is refused, as calls are for models without tools, has failed, too."""
    return sum(each.verdict != "passed" for each in attempts)


def as_json(
    asked: dict[str, Any], attempts: Mapping[str, Sequence[Attempt]], **facts: Any
) -> dict[str, Any]:
    """The report, which can be a reference for others if it is complete."""
    return {
        "tool": TOOL,
        "format": FORMAT,
        **facts,
        "asked": asked,
        "complete": all(one.verdict in _ANSWERED for each in attempts.values() for one in each),
        "fixtures": {
            name: {
                "case_sha256": asked["cases"][name],
                "graders_sha256": asked["graders"],
                "failures": failures(each),
                "attempts": [asdict(one) for one in each],
            }
            for name, each in attempts.items()
        },
    }


def reference(path: Path, asked: dict[str, Any]) -> Cohort:
    """The cohort in a report of an earlier run that was asked the same. Raises Incomparable."""
    try:
        report = json.loads(path.read_text())
        known = (report["tool"], report["format"]) == (TOOL, FORMAT)
        complete, theirs = report["complete"], dict(report["asked"])
        counts = {name: int(each["failures"]) for name, each in report["fixtures"].items()}
        name = str(report["model"])
    except OSError as error:
        raise Incomparable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Incomparable(f"{path} is no report of {TOOL}") from None
    if not known:
        raise Incomparable(f"{path} is no report of {TOOL} in format {FORMAT}")
    if not complete:
        raise Incomparable(f"{path} is incomplete: its server did not answer everything")
    other = sorted(key for key in asked | theirs if asked.get(key) != theirs.get(key))
    if other or counts.keys() != asked["cases"].keys():
        raise Incomparable(f"{path} was asked something else: {', '.join(other) or 'fixtures'}")
    return Cohort(name, counts)


def worse(candidate: Mapping[str, int], references: Sequence[Cohort]) -> list[str]:
    """The fixtures that the candidate failed more often than any reference did."""
    return [
        name
        for name, failed in candidate.items()
        if references and failed > max(each.failures[name] for each in references)
    ]

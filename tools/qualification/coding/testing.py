"""Tests of a program that others have written, run in a process and folders of their own."""

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from tools.qualification.coding import run_tests as child
from tools.qualification.coding.child import run_child
from tools.qualification.coding.files import Files, write_files
from tools.qualification.coding.task import Task

_SECONDS = 60.0


class Unusable(Exception):
    """The tests of the fixture say nothing on this machine; the message says why."""


@dataclass(frozen=True)
class Tested:
    """What came of it. `broken` tests came to no end of their own."""

    verdict: Literal["passed", "failed", "broken"]
    output: str

    @property
    def told(self) -> str:
        """In one line: the verdict, and the last words."""
        return ": ".join((self.verdict, *self.output.strip().splitlines()[-1:]))


def run_tests(tests: Files, program: Files) -> Tested:
    """Run the tests in files named `test_*.py` over a copy of the program."""
    with TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary).resolve()
        write_files(folder / "tests", tests)
        write_files(folder / "program", program)
        write_files(folder / "work", {})
        # Isolated: neither the folder nor the environment says what is imported.
        python = (sys.executable, "-I", "-S", "-B", child.__file__)
        arguments = (str(folder / "tests"), str(folder / "program"))
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        passed = 128 + secrets.randbelow(128)  # above all that Python itself ends with
        work = folder / "work"
        ended = run_child([*python, *arguments], work, environment, _SECONDS, bytes([passed]))
    output = f"{ended.out}{ended.err}"
    match ended.code:
        case code if code == passed:
            return Tested("passed", output)
        case child.FAILED:
            return Tested("failed", output)
        case None:
            return Tested("broken", f"{output}\nkilled after {_SECONDS:.0f} s")
        case code:
            return Tested("broken", f"{output}\nended with exit code {code}")


def baseline_of(task: Task) -> dict[str, Tested]:
    """The tests of the project as a session finds it, which fail. Raises Unusable."""
    tests = {"visible-tests": task.tests, "hidden-tests": task.unseen}
    baseline = {name: run_tests(each, task.project) for name, each in tests.items()}
    for name, tested in baseline.items():
        if tested.verdict != "failed":
            raise Unusable(f"the {name} of the fixture must fail before a session: {tested.told}")
    return baseline

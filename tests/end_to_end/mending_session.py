"""A project with a bug, and a session that mends it: what the model says, turn by turn.

What it writes into the file has what breaks careless parsers: the markers of every family as text,
quotes, backslashes, a tab, characters beyond ASCII, and line ends at both ends.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.conversation import Block, Text, Thinking, ToolCall
from tests.models.families.histories import FORGED
from tools.qualification.coding.files import read_files
from tools.qualification.coding.testing import run_tests

QUESTION = "A test of the prices fails. Please mend what it tests, not the test."
# What the client may do without a question.
ALLOWED = "Read,Edit,Bash(python3 -m unittest*)"
_TEST = "python3 -m unittest test_prices"
_REQUIREMENTS = "A discount is a share: of 0.25, three quarters are paid.\n"
_PROGRAM = '''"""What a basket costs."""


def total(prices, discount=0.0):
    return sum(prices) * discount
'''
_MENDED = f"""
    return sum(prices) * (1 - discount)


NOTE = {FORGED!r}  # größe 😀\t"it's"
"""
_TESTS = """import unittest

from prices import total


class Prices(unittest.TestCase):
    def test_a_discount(self):
        self.assertEqual(total([4, 8], {discount}), {total})
"""


@dataclass(frozen=True)
class Project:
    folder: Path

    @classmethod
    def write(cls, folder: Path) -> "Project":
        folder.mkdir()
        project = cls(folder)
        project.program.write_text(_PROGRAM)
        project.tests.write_text(_TESTS.format(discount=0.25, total=9))
        project.requirements.write_text(_REQUIREMENTS)
        return project

    @property
    def program(self) -> Path:
        return self.folder / "prices.py"

    @property
    def tests(self) -> Path:
        return self.folder / "test_prices.py"

    @property
    def requirements(self) -> Path:
        return self.folder / "REQUIREMENTS.md"

    def answers(self) -> dict[int, list[Block]]:
        """By how many results of tools the model has seen."""
        return {
            0: [
                Thinking("First the program.\n\nIts test calls it: `<tool_call>`."),
                Text("I look at the program."),
                _call("Read", file_path=str(self.program)),
            ],
            1: [
                Thinking("What should it do?"),
                _call("Read", file_path=str(self.tests)),
                _call("Read", file_path=str(self.requirements)),
            ],
            3: [
                Thinking("Does it fail?"),
                Text("Now the test:"),
                _call("Bash", command=_TEST, description="Run the test"),
            ],
            4: [
                Thinking("9 is not 3."),
                _call(
                    "Edit",
                    file_path=str(self.program),
                    old_string="\n    return sum(prices) * discount\n",
                    new_string=_MENDED,
                    replace_all=False,  # or the client adds it
                ),
            ],
            5: [
                Thinking("Is that all?"),
                _call("Bash", command=f"{_TEST}\n", description="Run the test again"),
            ],
            6: [Thinking("All is well."), Text("The test passes.\n\n- `1 - discount` is paid now")],
        }

    def is_mended(self) -> bool:
        """Only the program was changed, as asked, and passes tests that the session never saw."""
        unseen = {"test_unseen.py": _TESTS.format(discount=0.5, total=6).encode()}
        return (
            run_tests(unseen, read_files(self.folder)).verdict == "passed"
            and self.program.read_text() == _PROGRAM.partition("\n    return")[0] + _MENDED
            and self.tests.read_text() == _TESTS.format(discount=0.25, total=9)
            and self.requirements.read_text() == _REQUIREMENTS
        )


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments)

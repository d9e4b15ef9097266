"""The frozen task: a project with a fault, what is asked of a session, and tests it never sees."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.qualification.coding.files import Files
from tools.qualification.frozen import read_frozen, sha256

_FOLDER = Path(__file__).parent / "fixture"
_PROMPT = "prompt.txt"


@dataclass(frozen=True)
class Task:
    """`project` is what a session begins with. Of that, `tests` and requirements must stay."""

    prompt: str
    project: Files
    unseen: Files
    digests: Mapping[str, str]
    missing: str = "NOTES.md"
    """The file that the prompt asks for though it does not exist."""

    @property
    def tests(self) -> Files:
        """Those that the session sees."""
        return {name: data for name, data in self.project.items() if name.startswith("test_")}

    @property
    def sources(self) -> Files:
        """What may be changed."""
        names = self.project.keys() - self.tests.keys()
        return {name: self.project[name] for name in names if name.endswith(".py")}

    @classmethod
    def read(cls) -> "Task":
        """Raises NotFrozen."""
        read = read_frozen(_FOLDER)
        return cls(
            read[_PROMPT].decode(),
            _below("project", read),
            _below("hidden", read),
            {name: sha256(data) for name, data in sorted(read.items())},
        )


def _below(folder: str, read: Files) -> Files:
    start = f"{folder}/"
    return {name.removeprefix(start): read[name] for name in read if name.startswith(start)}

"""What the tests of `mererun connect claude-code` ask, and where they look."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from service.cli import main

NO = {"supported": False}
PLAIN = {
    "id": "plain",
    "max_input_tokens": 262_144,
    "max_tokens": 262_144,
    "capabilities": {"effort": NO, "thinking": {"supported": False, "types": {"adaptive": NO}}},
}
AS_MERERUN = json.dumps({"type": "runtime", "data": [PLAIN]}).encode()


@dataclass(frozen=True)
class Keyed:
    url: str
    key_file: Path


def connect(project: Path, *arguments: str) -> Result:
    command = ["connect", "claude-code", "--dir", str(project), *arguments]
    return CliRunner().invoke(main, command, catch_exceptions=False)


def applied(project: Path, *arguments: str) -> dict[str, Any]:
    result = connect(project, *arguments, "--apply", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def local(project: Path) -> Path:
    return project / ".claude" / "settings.local.json"


def settings(project: Path) -> dict[str, Any]:
    return json.loads(local(project).read_text())


def with_settings(project: Path, text: str) -> Path:
    local(project).parent.mkdir()
    local(project).write_text(text)
    return local(project)


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr

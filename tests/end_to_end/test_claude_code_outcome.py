"""The real Qwen in the real Claude Code attempts the coding task. Whether it can is told in
`build/coding-outcome`, and no part of a verdict on this repository."""

import json
import shutil
from pathlib import Path

from tests.support.claude_code import NEW, installed
from tests.support.running import REPOSITORY, Running
from tools.qualify_coding import main

_TOLD = REPOSITORY / "build" / "coding-outcome"
# Of which much goes into the prompt: CPUs have no time for a whole session here.
_LIMITS = ("--timeout-s", "120", "--max-turns", "8", "--max-tokens", "512")


def test_the_outcome_of_the_real_model_is_recorded(qwen_service: Running, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    options = ("--client", str(installed(NEW)), "--small-prompt", "--evidence", str(evidence))
    code = main([qwen_service.url, *options, *_LIMITS])
    shutil.copytree(evidence, _TOLD, dirs_exist_ok=True)

    report = json.loads((evidence / "report.json").read_text())
    (session,) = report["sessions"]
    assert report["verdict"] == ("failed" if code else "passed")
    assert len(session["outcomes"]) == 9
    assert session["transport"]["verdict"] in ("passed", "failed", "not seen")

"""The real Qwen in the real Claude Code attempts the coding task. Whether it can is told in
`build/coding-outcome`, and no part of a verdict on this repository. Two cores take many minutes, so
it is tried by `make outcome` only."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.claude_code import NEW, installed
from tests.support.running import REPOSITORY, Running
from tools.qualify_coding import main

_TOLD = REPOSITORY / "build" / "coding-outcome"
_LIMITS = ("--max-turns", "12", "--max-tokens", "512")


@pytest.mark.skipif("MERERUN_OUTCOME" not in os.environ, reason="it is run by `make outcome`")
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

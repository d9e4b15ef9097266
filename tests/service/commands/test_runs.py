"""`mererun runs` is `tools/inspect-runs`."""

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from service.cli import main
from tools.inspect_runs import main as inspect_runs


def test_it_is_the_same_code(tmp_path: Path) -> None:
    for arguments in (["prune"], ["list", "--data-dir", str(tmp_path)], ["show"], ["list", "-x"]):
        there = CliRunner().invoke(inspect_runs, arguments)
        here = CliRunner().invoke(main, ["runs", *arguments])
        assert (here.exit_code, there.exit_code) == (2, 2)
        assert here.stderr.splitlines()[-1] == there.stderr.splitlines()[-1]


def test_help_names_it_and_what_it_can() -> None:
    assert "\n  runs " in CliRunner().invoke(main, ["--help"]).stdout
    assert "\n  prune " in CliRunner().invoke(main, ["runs", "--help"]).stdout


def test_a_service_starts_without_it() -> None:
    code = "import sys, service.cli; print([name for name in sys.modules if name[:5] == 'tools'])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout == "[]\n", printed.stderr

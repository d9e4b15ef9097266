"""The bench runs; whether its figures are good is not for a test to say."""

import json
import subprocess
from pathlib import Path

from tests.support.running import REPOSITORY


def test_parts_are_measured_and_every_figure_says_how(tiny: Path) -> None:
    command = [REPOSITORY / "tools" / "bench-service", "--quick", "--json", "--model", str(tiny)]
    bench = subprocess.run(
        [*command, "--only", "job-cost", "store"], capture_output=True, text=True, timeout=120
    )

    assert bench.returncode in (0, 1), bench.stderr  # 1: a bar was missed, as on a busy machine
    told = json.loads(bench.stdout)
    assert {"cpu", "cores", "python", "mlx", "blas", "model"} <= told["machine"].keys()
    figures = {figure["name"]: figure for figure in told["figures"]}
    assert {"a job, disk waits included", "one fsync", "a claim, p99"} <= figures.keys()
    for figure in figures.values():
        assert figure["value"] >= 0
        assert figure["how"]
        assert (figure["passed"] is None) == (figure["bar"] is None)


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    bench = subprocess.run(
        [REPOSITORY / "tools" / "bench-service", "--model", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert bench.returncode == 2
    assert bench.stderr.startswith("bench-service: ")
    assert bench.stderr.count("\n") == 1

"""The bench runs; whether its figures are good is not for a test to say."""

import json
import subprocess
import sys

from tests.support.running import REPOSITORY


def test_a_look_up_is_measured_and_says_how() -> None:
    bench = subprocess.run(
        [REPOSITORY / "tools" / "bench-cache", "--quick", "--json", "--only", "lookup"],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert bench.returncode in (0, 1), bench.stderr  # 1: a bar was missed, as on a busy machine
    (figure,) = json.loads(bench.stdout)["figures"]
    assert figure["value"] > 0
    assert figure["how"]


def test_a_small_model_is_measured_on_this_device() -> None:
    shape = ["--layers", "4", "--hidden", "64", "--vocabulary", "64", "--window", "16"]
    asked = ["--tokens", "60", "--chunk", "16", "--bits", "16", "--times", "1"]
    bench = subprocess.run(
        [sys.executable, "-m", "tools.bench_cache_device", *shape, *asked],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert bench.returncode == 0, bench.stderr
    assert "cold first token" in bench.stdout
    assert "logits 0 apart" in bench.stdout
    assert "GB/s" in bench.stdout

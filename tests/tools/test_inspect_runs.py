"""`tools/inspect-runs`, over what the scripted service leaves on disk."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from click.testing import CliRunner, Result

from storage import data_dir
from storage.database import Database
from storage.run_records import RunRecord
from tests.support.lives import Connection
from tests.support.messages import body, scripted
from tests.support.running import REPOSITORY, Running, real_service, scripted_service
from tools.inspect_runs import main
from tools.inspection.terminal import safe

RUNS = {
    "said": scripted(say="hello \x1b[31mred\x07 there\nline two"),
    "stopped": {**scripted(say="go on until stop, not more"), "stop_sequences": ["stop"]},
    # Halves of characters: what the end of the answer flushes is U+FFFD.
    "cut": scripted(ids=[160, 161, 200]),
    "silent": scripted(say=""),
    "failed": scripted(say="ab", then="fail"),
    "died": scripted(say="ab", then="die"),
    "blocks": {
        **body(),
        "system": "Be \x9bkind.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "ÄRGER\x1b[2J"}]}],
    },
}
SLOW = scripted(say="x" * 400, step_ms=100) | {"max_tokens": 400}
BRIEFER = scripted(say="y" * 50, step_ms=100)


def inspect(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--data-dir", str(data_dir)])


def listed(data_dir: Path, *arguments: str) -> list[dict[str, Any]]:
    result = inspect(data_dir, "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Clients:
    """Requests whose answers nobody waits for."""

    def __init__(self, running: Running, *requests: dict[str, Any]) -> None:
        self._threads = [
            threading.Thread(target=self._ask, args=(running.url, r)) for r in requests
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str, request: dict[str, Any]) -> None:
        with suppress(httpx.HTTPError):
            httpx.post(f"{url}/v1/messages", json=request, timeout=60)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def decoding(data_dir: Path) -> bool:
    """Whether a run goes on and its record holds tokens."""
    return any(
        event["event"] == "tokens"
        for job in listed(data_dir, "--state", "running")
        for event in RunRecord.at(data_dir / job["record"]).events()
    )


@pytest.fixture(scope="module")
def ended(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A service that ended in order, after each run of RUNS and two that were cancelled."""
    data_dir = tmp_path_factory.mktemp("ended")
    with scripted_service(tiny, data_dir) as service, service.client() as client:
        ids: dict[str, Any] = {"data_dir": data_dir}
        for name, request in RUNS.items():
            client.post("/v1/messages", json=request)
            ids[name] = service.runs()[0]["id"]
        clients = Clients(service, SLOW)
        until(lambda: decoding(data_dir))
        later = Clients(service, SLOW)
        until(lambda: service.runs("queued"))
        (queued,), (running,) = service.runs("queued"), service.runs("running")
        for name, job in {"withdrawn": queued, "cancelled": running}.items():
            client.post(f"/v1/runs/{job['id']}/cancel")
            ids[name] = job["id"]
        clients.join()
        later.join()
        service.stop()
    return ids


@pytest.fixture(scope="module")
def crashed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that was killed while one run was decoding and two waited."""
    data_dir = tmp_path_factory.mktemp("crashed")
    with scripted_service(tiny, data_dir) as service:
        clients = Clients(service, BRIEFER, BRIEFER, BRIEFER)
        until(lambda: decoding(data_dir) and len(service.runs("queued")) == 2)
        service.kill()
        clients.join()
        yield service


def test_without_a_command_runs_are_listed_newest_first(ended: dict[str, Any]) -> None:
    result = inspect(ended["data_dir"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        job["id"] for job in sorted(listed(ended["data_dir"]), key=lambda job: -job["created_at"])
    ]
    assert lines[-1].startswith(f"{ended['said']}  succeeded")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--state", "failed"], ["died", "failed"]),
        (["--state", "cancelled", "--state", "failed", "--limit", "1"], ["withdrawn"]),
        (["--model", "no-such-model"], []),
        (["--text", "ärger"], ["blocks"]),
        (["--text", "GO ON UNTIL"], ["stopped"]),
        (["--since", "1h", "--text", "be"], ["blocks"]),
        (["--since", "2999-01-01T10:00"], []),
    ],
)
def test_a_list_can_be_filtered(
    ended: dict[str, Any], filters: list[str], expected: list[str]
) -> None:
    assert [job["id"] for job in listed(ended["data_dir"], *filters)] == [
        ended[name] for name in expected
    ]


def test_show_tells_the_whole_run(ended: dict[str, Any]) -> None:
    shown = inspect(ended["data_dir"], "show", ended["stopped"]).stdout
    for part in (
        f"{ended['stopped']}  succeeded (stop_sequence)",
        "Timeline",
        "queue",
        "decode",
        "queued",
        "running",
        '"say": "go on until stop, not more"',
        "\n    go on until \n",
        "tokens of 64 asked for",
    ):
        assert part in shown


def test_show_tells_why_there_is_no_answer(ended: dict[str, Any]) -> None:
    assert (
        "the engine failed: scripted" in inspect(ended["data_dir"], "show", ended["failed"]).stdout
    )
    withdrawn = inspect(ended["data_dir"], "show", ended["withdrawn"]).stdout
    assert "(no text)" in withdrawn
    assert "requested through the API" in withdrawn


def test_show_as_json_is_the_whole_record(ended: dict[str, Any]) -> None:
    shown = json.loads(inspect(ended["data_dir"], "show", ended["said"], "--json").stdout)
    assert shown["run"]["id"] == ended["said"]
    assert shown["request"] == RUNS["said"]
    assert [each["to_state"] for each in shown["history"]] == ["queued", "running", "succeeded"]
    text = "".join(each.get("text", "") for each in shown["events"])
    assert text == shown["response"]["message"]["content"][0]["text"]
    assert all(isinstance(each["at"], float) for each in shown["events"])


def test_a_run_is_found_by_its_beginning_or_its_message(ended: dict[str, Any]) -> None:
    suffix = ended["said"].removeprefix("run_")
    for id in (ended["said"], ended["said"][:14], f"msg_{suffix}", f"msg_{suffix[:10]}"):
        assert ended["said"] in inspect(ended["data_dir"], "show", id).stdout


def test_an_id_of_no_run_or_of_several_is_refused(ended: dict[str, Any]) -> None:
    for id, why in (("run_?", "no run begins with run_?"), ("run_", "9 runs begin with run_: ")):
        result = inspect(ended["data_dir"], "show", id)
        assert (result.exit_code, result.stdout) == (2, "")
        assert why in result.stderr


def test_nothing_printed_can_command_the_terminal(ended: dict[str, Any]) -> None:
    data_dir = ended["data_dir"]
    for arguments in (
        ["list"],
        ["list", "--json"],
        ["show", ended["said"]],
        ["show", ended["blocks"]],
        ["show", ended["blocks"], "--json"],
        ["replay", ended["said"]],
    ):
        printed = inspect(data_dir, *arguments).stdout
        assert not [each for each in printed if ord(each) < 32 and each not in "\n\t"]
        assert not [each for each in printed if 0x7F <= ord(each) < 0xA0]
    assert "ÄRGER\\x1b[2J" in inspect(data_dir, "show", ended["blocks"]).stdout


def test_replay_prints_what_streamed(ended: dict[str, Any]) -> None:
    said = inspect(ended["data_dir"], "replay", ended["said"], "--timing")
    assert said.stdout == "hello \\x1b[31mred\\x07 there\nline two\n"
    assert inspect(ended["data_dir"], "replay", ended["stopped"]).stdout == "go on until \n"
    failed = inspect(ended["data_dir"], "replay", ended["failed"])
    assert (failed.stdout, failed.stderr) == (
        "ab\n",
        "the run is failed: the engine failed: scripted\n",
    )


def test_every_kind_of_end_verifies(ended: dict[str, Any]) -> None:
    result = inspect(ended["data_dir"], "verify")
    assert (result.exit_code, result.stdout) == (0, "9 runs verified\n")
    one = inspect(ended["data_dir"], "verify", ended["died"][:14], ended["cancelled"])
    assert (one.exit_code, one.stdout) == (0, "2 runs verified\n")


def test_after_a_crash_the_log_is_read_and_nothing_is_written(crashed: Running) -> None:
    data_dir = crashed.data_dir
    before = files(data_dir)
    states = [job["state"] for job in listed(data_dir)]
    assert states == ["queued", "queued", "running"]
    (running,) = listed(data_dir, "--state", "running")
    shown = inspect(data_dir, "show", running["id"]).stdout
    assert "Answer so far" in shown
    assert inspect(data_dir, "replay", running["id"]).stdout.startswith("y")
    assert inspect(data_dir, "verify").stdout == "3 runs verified\n"
    assert files(data_dir) == before


def files(data_dir: Path) -> dict[str, tuple[int, bytes]]:
    """All that a data folder holds, but for the locks in SQLite's shared memory."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in data_dir.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


def test_the_next_start_leaves_interrupted_runs_that_verify(crashed: Running) -> None:
    if crashed.process.poll() is not None:
        crashed.start()
    states = {job["state"] for job in listed(crashed.data_dir)}
    assert states == {"interrupted"}
    assert inspect(crashed.data_dir, "verify").stdout == "3 runs verified\n"


def test_without_content_shapes_are_shown_and_counts_verified(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path, record_content=False) as service:
        with service.client() as client:
            client.post("/v1/messages", json=scripted(say="secret"))
        (job,) = service.runs()
        # All of this beside the running service.
        shown = inspect(tmp_path, "show", job["id"]).stdout
        assert "[6 characters, sha256 " in shown
        assert inspect(tmp_path, "replay", job["id"]).stdout == "······\n"
        assert inspect(tmp_path, "verify").stdout == "1 runs verified\n"
        for arguments in (["list"], ["list", "--json"], ["show", job["id"], "--json"]):
            assert "secret" not in inspect(tmp_path, *arguments).stdout
        assert listed(tmp_path, "--text", "secret") == []


@pytest.fixture
def stray(ended: dict[str, Any], tmp_path: Path) -> Path:
    """A copy of a good data folder."""
    subprocess.run(["cp", "-a", f"{ended['data_dir']}/.", tmp_path], check=True)
    return tmp_path


def test_findings_are_printed_one_a_line_and_fail(ended: dict[str, Any], stray: Path) -> None:
    said, silent = (next(stray.glob(f"runs/*/*/*/{ended[name]}")) for name in ("said", "silent"))
    silent.rename(silent.with_name("run_stray"))
    (said / "response.json").chmod(0o640)
    said.parent.chmod(0o750)
    day = said.parent.relative_to(stray)
    result = inspect(stray, "verify")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{ended['silent']}: its record {day}/{ended['silent']} is missing",
        f"{ended['said']}: {said}/response.json has mode 0640, not 0600",
        f"run_stray: {day}/run_stray is a record without a run",
        f"{day}: {said.parent} has mode 0750, not 0700",
    ]


def test_a_request_that_never_became_a_run_is_no_fault(ended: dict[str, Any], stray: Path) -> None:
    said = next(stray.glob(f"runs/*/*/*/{ended['said']}"))
    stray_record = said.with_name("run_stray")
    shutil.copytree(said, stray_record)
    for name in ("events.jsonl", "response.json", "telemetry.json"):
        (stray_record / name).unlink()
    result = inspect(stray, "verify")
    assert result.exit_code == 0
    assert result.stderr == "1 requests never became a run\n"


def test_a_run_without_a_record_can_still_be_shown(ended: dict[str, Any], stray: Path) -> None:
    shutil.rmtree(next(stray.glob(f"runs/*/*/*/{ended['said']}")))
    assert "(its record cannot be read)" in inspect(stray, "show", ended["said"]).stdout
    shown = json.loads(inspect(stray, "show", ended["said"], "--json").stdout)
    assert (shown["request"], shown["prompt"], shown["response"]) == (None, None, None)
    assert "(no readable record)" in inspect(stray, "list").stdout


def test_prune_removes_what_is_old_and_says_how_much(ended: dict[str, Any], stray: Path) -> None:
    assert (
        "0 runs would be removed"
        in inspect(stray, "prune", "--older-than", "1d", "--dry-run").stdout
    )
    would = inspect(stray, "prune", "--keep-gib", "0", "--dry-run")
    assert would.exit_code == 0
    assert would.stdout.startswith("9 runs would be removed, ")
    assert inspect(stray, "verify").stdout == "9 runs verified\n"
    pruned = inspect(stray, "prune", "--older-than", "0s")
    assert pruned.stdout == would.stdout.replace("would be removed", "removed")
    assert inspect(stray, "verify").stdout == "0 runs verified\n"
    assert list((stray / "runs").iterdir()) == []


def test_prune_asks_what_to_remove(ended: dict[str, Any]) -> None:
    result = inspect(ended["data_dir"], "prune")
    assert result.exit_code == 2
    assert "say what to remove: --older-than 30d, --keep-gib 10, or both" in result.stderr
    for bad in ("30", "d", "-1d", "tomorrow"):
        result = inspect(ended["data_dir"], "prune", "--older-than", bad)
        assert (result.exit_code, result.stdout) == (2, "")
    for bad in ("nan", "inf", "-1"):
        result = inspect(ended["data_dir"], "prune", "--keep-gib", bad)
        assert (result.exit_code, result.stdout) == (2, "")


def test_prune_works_beside_a_service_and_spares_what_goes_on(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path) as service, service.client() as client:
        for _ in range(3):
            client.post("/v1/messages", json=scripted())
        clients = Clients(service, SLOW)
        until(lambda: decoding(tmp_path))
        assert inspect(tmp_path, "prune", "--older-than", "0s").stdout.startswith("3 runs removed")
        (left,) = service.runs()
        assert left["state"] == "running"
        assert inspect(tmp_path, "verify").stdout == "1 runs verified\n"
        client.post(f"/v1/runs/{left['id']}/cancel")
        clients.join()


def test_a_record_that_is_being_removed_is_no_finding(ended: dict[str, Any], stray: Path) -> None:
    silent = next(stray.glob(f"runs/*/*/*/{ended['silent']}"))
    with sqlite3.connect(stray / "mererun.db") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM jobs WHERE id = ?", [ended["silent"]])
        record = str(silent.relative_to(stray))
        connection.execute("INSERT INTO discarded_records VALUES (?)", [record])
    connection.close()
    assert inspect(stray, "verify", "--all").stdout == "8 runs verified\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("said", "has succeeded: only what was cancelled or interrupted can be resumed"),
        ("failed", "has failed: only what was cancelled or interrupted can be resumed"),
    ],
)
def test_resume_refuses_by_name(ended: dict[str, Any], name: str, why: str) -> None:
    with data_dir.lock(ended["data_dir"], model="tiny"):
        result = inspect(ended["data_dir"], "resume", ended[name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{ended[name]} {why}" in result.stderr


def test_resume_needs_the_model(ended: dict[str, Any]) -> None:
    result = inspect(ended["data_dir"], "resume", ended["cancelled"])
    assert result.exit_code == 2
    assert "tiny is neither an installed model nor a model folder" in result.stderr
    with data_dir.lock(ended["data_dir"], model="other"):
        result = inspect(ended["data_dir"], "resume", ended["cancelled"])
    assert "was begun by the model tiny, and other is served" in result.stderr


def test_resume_finishes_an_interrupted_answer_and_prints_it(
    tiny: Path, tmp_path: Path, crashed: Running
) -> None:
    if crashed.process.poll() is not None:
        crashed.start()
    begun = next(
        job["id"] for job in listed(crashed.data_dir, "--state", "interrupted") if job["attempt"]
    )
    text = "y" * 50
    result = inspect(crashed.data_dir, "resume", begun)
    assert (result.exit_code, result.stdout) == (0, f"{text}\n"), result.output
    shown = json.loads(inspect(crashed.data_dir, "show", begun, "--json").stdout)
    assert shown["response"]["message"]["content"] == [{"type": "text", "text": text}]
    states = [each["to_state"] for each in shown["history"]]
    assert states == ["queued", "running", "interrupted", "queued", "running", "succeeded"]
    assert inspect(crashed.data_dir, "verify").stdout == "3 runs verified\n"


def test_resume_does_without_a_service(tiny: Path, tmp_path: Path) -> None:
    with real_service(tiny, tmp_path / "data") as running:
        request = {**body(), "max_tokens": 300, "temperature": 0, "stream": True}
        with Connection(running.url, request) as connection:
            connection.read_until(b"content_block_delta")
            run_id = connection.run_id()
            running.kill()
    result = inspect(running.data_dir, "resume", run_id, "--model", str(tiny))
    assert result.exit_code == 0, result.output
    shown = json.loads(inspect(running.data_dir, "show", run_id, "--json").stdout)
    assert shown["run"]["state"] == "succeeded"
    assert shown["run"]["output_tokens"] == 300
    assert result.stdout == safe(shown["response"]["message"]["content"][0]["text"]) + "\n"
    assert inspect(running.data_dir, "verify").stdout == "1 runs verified\n"


def test_resume_without_a_service_can_be_stopped_and_taken_up_again(
    tiny: Path, tmp_path: Path
) -> None:
    with real_service(tiny, tmp_path / "data") as running:
        request = {**body(), "max_tokens": 3000, "temperature": 0, "stream": True}
        with Connection(running.url, request) as connection:
            connection.read_until(b"content_block_delta")
            run_id = connection.run_id()
            running.kill()
    options = ["--data-dir", str(running.data_dir), "--model", str(tiny)]
    command = [sys.executable, "-m", "tools.inspect_runs", "resume", run_id, *options]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=-1) as resuming:
        assert resuming.stdout is not None
        resuming.stdout.read(200)
        resuming.terminate()
        assert b"stopped by hand" in resuming.communicate(timeout=30)[1]
    assert resuming.returncode == 1
    shown = json.loads(inspect(running.data_dir, "show", run_id, "--json").stdout)
    assert shown["run"]["state"] == "interrupted"
    assert inspect(running.data_dir, "verify").stdout == "1 runs verified\n"


@pytest.mark.parametrize(
    ("schema", "why"), [("9999", "newer mererun (schema 9999)"), ("", "has no schema yet")]
)
def test_another_schema_is_refused_by_name(tmp_path: Path, schema: str, why: str) -> None:
    async def make() -> None:
        async with Database.open(tmp_path / "mererun.db"):
            pass

    anyio.run(make)
    with sqlite3.connect(tmp_path / "mererun.db") as connection:
        connection.execute("DELETE FROM alembic_version")
        if schema:
            connection.execute("INSERT INTO alembic_version VALUES (?)", [schema])
    connection.close()
    result = inspect(tmp_path, "list")
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


def test_a_folder_without_a_database_is_refused_and_none_is_made(tmp_path: Path) -> None:
    result = inspect(tmp_path, "verify")
    assert result.exit_code == 2
    assert "there is no database" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_script_works_from_any_folder(ended: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "storage.py").write_text("raise SystemExit('not this one')")
    process = subprocess.run(
        [REPOSITORY / "tools" / "inspect-runs", "--limit", "1"],
        cwd=tmp_path,
        env={**os.environ, "MERERUN_DATA_DIR": str(ended["data_dir"])},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(ended["withdrawn"])

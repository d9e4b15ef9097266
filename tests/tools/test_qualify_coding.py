"""`tools/qualify-coding`, with a client that does and says what it is told to."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import stand_in_claude
from tests.support.messages_server import MessagesServer, messages_server, said
from tests.support.running import REPOSITORY
from tools.qualify_coding import main

Steps = list[list[Any]]
Qualify = Callable[..., tuple[int, dict[str, Any]]]


def read(name: str) -> list[Any]:
    return ["Read", {"file_path": name}]


def bash(command: str) -> list[Any]:
    return ["Bash", {"command": command}]


def edit(name: str, old: str, new: str) -> list[Any]:
    return ["Edit", {"file_path": name, "old_string": old, "new_string": new}]


LOOK = [read("REQUIREMENTS.md"), read("pages.py")]
TEST = bash("python3 -m unittest")
MISSING = read("NOTES.md")
ROUND_UP = edit("pages.py", "len(lines) // size", "-(-len(lines) // size)")
REFUSE = edit("pages.py", "    return", "    if size < 1:\n        raise ValueError\n    return")
GOOD = [*LOOK, TEST, MISSING, ROUND_UP, REFUSE, TEST]


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with messages_server(lambda request: said("Hello.")) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path) -> Path:
    command = [sys.executable, "-IS", stand_in_claude.__file__, str(tmp_path / "sessions.json")]
    client = tmp_path / "claude"
    client.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    client.chmod(0o755)
    return client


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return tmp_path / "evidence"


@pytest.fixture
def qualify(server: MessagesServer, client: Path, evidence: Path, tmp_path: Path) -> Qualify:
    def run(*sessions: Steps, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        (tmp_path / "sessions.json").write_text(json.dumps(sessions))
        runs = ("--runs", str(len(sessions)))
        where = (server.url, "--client", str(client), "--evidence", str(evidence))
        code = main([*where, *runs, *options])
        return code, json.loads((evidence / "report.json").read_text())

    return run


def faults(session: dict[str, Any]) -> dict[str, str]:
    """The outcomes that failed, and why."""
    return {each["name"]: each["why"] for each in session["outcomes"] if not each["passed"]}


def test_a_session_that_did_all_passes_and_leaves_its_evidence(
    qualify: Qualify, evidence: Path
) -> None:
    code, report = qualify(GOOD, options=("--small-prompt", "--max-turns", "7"))

    (session,) = report["sessions"]
    assert (code, report["verdict"], session["verdict"]) == (0, "passed", "passed"), session
    assert len(session["outcomes"]) == 9
    assert report["baseline"] == {"visible-tests": "failed", "hidden-tests": "failed"}
    assert len(report["fixture"]["project/pages.py"]) == 64
    transport = session["transport"]
    assert (transport["verdict"], transport["answers"], transport["turns"]) == ("passed", 7, 3)
    assert (transport["tool_calls"], transport["tool_errors"]) == (7, 2)
    assert transport["usage"]["cache_read_input_tokens"] == 90
    run = evidence / "run-1"
    first = json.loads((run / "transcript.jsonl").read_text().splitlines()[0])
    assert first["stdin"] == ""
    assert " --max-turns 7 --bare" in " ".join(first["arguments"])
    assert "+        raise ValueError\n" in (run / "project.diff").read_text()
    assert "test_no_page_can_be_smaller" in (run / "hidden-tests.txt").read_text()
    assert "FAILED" in (evidence / "baseline-hidden-tests.txt").read_text()
    page = (evidence / "report.md").read_text()
    assert "| hidden tests pass | pass |" in page
    assert "| tool\\_errors | 2 |" in page


def test_what_was_done_counts_and_no_word_of_the_model(qualify: Qualify) -> None:
    tests_edited = edit("test_pages.py", '[["a", "b"], ["c"]]', '[["a", "b"]]')
    both_tests = {"visible tests pass", "hidden tests pass"}
    met = "met the deliberate error once and went on"
    order = {"inspected the source", "saw the baseline fail"}
    cases: list[tuple[Steps, set[str]]] = [
        ([], {*order, *both_tests, met, "edited the source"}),
        (
            [*LOOK, TEST, MISSING, tests_edited, TEST],
            {"tests and requirements unchanged", "edited the source", *both_tests},
        ),
        ([*LOOK, TEST, MISSING, ROUND_UP, TEST], {"hidden tests pass"}),
        ([MISSING, ROUND_UP, REFUSE, *LOOK, TEST], order),
        ([bash("cat pages.py"), TEST, MISSING, MISSING, ROUND_UP, REFUSE], {met}),
        ([bash("cat test_pages.py"), TEST, MISSING, ROUND_UP, REFUSE], {"inspected the source"}),
        ([bash("echo cat pages.py"), TEST, MISSING, ROUND_UP, REFUSE], {"inspected the source"}),
        (
            [*LOOK, bash("echo 'FAILED (unittest)'"), MISSING, ROUND_UP, REFUSE],
            {"saw the baseline fail"},
        ),
        ([*GOOD, bash("echo found test_pages_unseen.py")], {"hidden tests stayed hidden"}),
        ([*GOOD, ["leave"]], {"ended by itself"}),
        (
            [*GOOD, edit("pages.py", '"""The pages', 'import os\nos._exit(86)\n"""The pages')],
            both_tests,
        ),
        (
            [*GOOD, edit("pages.py", '"""The pages', 'import os\nos._exit(0)\n"""The pages')],
            both_tests,
        ),
    ]
    code, report = qualify(*(steps for steps, _ in cases))

    assert code == 1
    told = [set(faults(each)) for each in report["sessions"]]
    assert told == [failed for _, failed in cases]
    edited, ended = faults(report["sessions"][1]), faults(report["sessions"][-1])
    assert edited["tests and requirements unchanged"] == "changed or gone: test_pages.py"
    assert ended["visible tests pass"] == "broken: ended with exit code 0"


def test_a_session_that_hangs_is_ended_with_all_it_has_started(
    qualify: Qualify, evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = qualify([*LOOK, ["hang"]], options=("--timeout-s", "1"))

    assert code == 1
    assert faults(report["sessions"][0])["ended by itself"] == "it was killed after 1 s"
    assert "  ended by itself: it was killed after 1 s\n" in capsys.readouterr().out
    printed = (evidence / "run-1" / "transcript.jsonl").read_text()
    (started,) = re.findall(r"process (\d+)", printed)
    # What nobody waits for stays as a zombie in some containers.
    alive = [each.pid for each in psutil.process_iter() if each.status() != psutil.STATUS_ZOMBIE]
    assert int(started) not in alive


def test_requests_that_were_tried_again_fail_the_transport_alone(qualify: Qualify) -> None:
    code, report = qualify([["try again"], *GOOD], [*GOOD, ["give up"]])

    again, given_up = report["sessions"]
    assert code == 1
    assert (again["verdict"], again["transport"]["verdict"]) == ("passed", "failed")
    assert [each["error_status"] for each in again["transport"]["retries"]] == [529]
    assert given_up["transport"]["error"] == "API Error: 529"
    assert faults(given_up) == {"ended by itself": "success: API Error: 529"}


def test_a_server_that_dies_leaves_a_report_that_says_so(
    qualify: Qualify, server: MessagesServer, evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.dies_after = 1
    ask = f"import urllib.request as u; u.urlopen('{server.url}/v1/messages', b'{{}}')"
    code, report = qualify([bash(shlex.join(["python3", "-c", ask])), ["give up"]], GOOD)

    assert (code, report["server_is_gone"]) == (1, True)
    assert [each["verdict"] for each in report["sessions"]] == ["failed", "not run"]
    assert report["sessions"][1]["transport"] is None
    told = capsys.readouterr().out
    assert told.endswith("run 2: not run: the server is gone\nthe server was gone at the end\n")
    assert "**The server was gone at the end.**" in (evidence / "report.md").read_text()


def test_strange_characters_in_a_session_change_nothing(qualify: Qualify, evidence: Path) -> None:
    missing = ["Read", {"file_path": "NOTES.md", "why": "one\u2028another\x85line"}]
    strange = bash("printf 'found' > \"$(printf 'a\\377')\"")
    code, report = qualify([*LOOK, TEST, missing, ROUND_UP, REFUSE, TEST, strange])

    assert code == 0, faults(report["sessions"][0])
    assert report["sessions"][0]["files_added"] == ["a\udcff"]
    assert "+++ after/a\\udcff\n" in (evidence / "run-1" / "project.diff").read_text()


def test_the_key_is_in_no_evidence(qualify: Qualify, evidence: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    _, report = qualify([["tell", "ANTHROPIC_API_KEY"]], options=("--api-key-file", str(key)))

    assert report["sessions"][0]["files_added"] == ["told.txt"]
    kept = [each.read_text() for each in evidence.rglob("*") if each.is_file()]
    assert len(kept) == 9
    assert not any("secret" in each for each in kept)
    assert sum("[key]" in each for each in kept) == 2


def test_a_key_that_is_a_common_word_changes_no_verdict(
    qualify: Qualify, evidence: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("test")
    steps = [*GOOD, ["tell", "ANTHROPIC_API_KEY"]]
    code, report = qualify(steps, options=("--api-key-file", str(key)))

    assert (code, report["verdict"]) == (0, "passed"), report["sessions"]
    assert report["sessions"][0]["transport"]["tool_calls"] == 7
    assert "test" not in (evidence / "run-1" / "project.diff").read_text()


def test_a_key_at_the_cut_of_an_output_leaves_no_part(
    qualify: Qualify, evidence: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("Q" * 20)
    tell = "print(open(__file__.replace('pages.py', 'told.txt')).read() * 5000)"
    steps = [
        ["tell", "ANTHROPIC_API_KEY"],
        edit("pages.py", '"""The pages', f'{tell}\n"""The pages'),
    ]
    qualify(steps, options=("--api-key-file", str(key)))

    output = (evidence / "run-1" / "visible-tests.txt").read_text()
    assert len(output) == 20_000
    assert "[key][key]" in output
    assert "Q" not in output


def test_what_cannot_be_run_is_refused_in_one_line(
    server: MessagesServer, client: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, full, there = tmp_path / "new", tmp_path / "full", str(client)
    full.mkdir()
    (full / "notes").touch()
    for url, program, folder, why in (
        (server.url, str(tmp_path / "none"), new, f"there is no program {tmp_path / 'none'}"),
        (server.url, shutil.which("false") or "false", new, "does not tell its version"),
        (server.url, there, full, "has files in it already"),
        (server.url, there, full / "notes" / "new", "cannot be made"),
        ("http://127.0.0.1:9", there, new, "nothing answers at http://127.0.0.1:9"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([url, "--client", program, "--evidence", str(folder)])
        told = capsys.readouterr().err
        assert why in told
        assert told.count("\n") == 1
        assert not new.exists()


def test_a_fixture_that_was_edited_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    copied = tmp_path / "tools"
    shutil.copytree(REPOSITORY / "tools", copied, ignore=shutil.ignore_patterns("__pycache__"))
    with (copied / "qualification/coding/fixture/hidden/test_pages_unseen.py").open("a") as file:
        file.write("\n")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    ended = subprocess.run(
        [copied / "qualify-coding", "http://127.0.0.1:9", "--evidence", tmp_path / "new"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "qualify-coding: not as frozen in SHA256SUMS: hidden/test_pages_unseen.py; "
        "put the files back\n"
    )

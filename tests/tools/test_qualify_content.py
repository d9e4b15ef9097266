"""`tools/qualify-content`, over a server that knows the answers, or some of them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages_server import Blocks, MessagesServer, called, messages_server, said
from tests.support.running import REPOSITORY
from tools.qualification.content.fixtures import Fixture, fixtures
from tools.qualification.content.graders import Answer, fault
from tools.qualify_content import main

Qualify = Callable[..., tuple[int, dict[str, Any]]]
FIXTURES = fixtures()


def right(fixture: Fixture) -> Blocks:
    expected = fixture.grader["expected"]
    match fixture.grader["kind"]:
        case "call":
            return called(expected["name"], **expected["input"])
        case "json":
            return said(f"```json\n{json.dumps(expected, indent=1)}\n```")
        case _:
            return said(f"{expected}\n")


def knowing(request: dict[str, Any]) -> Blocks:
    """The right answer to whichever fixture it is."""
    return right(next(f for f in FIXTURES if f.request["messages"] == request["messages"]))


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with messages_server(knowing) as server:
        yield server


@pytest.fixture
def qualify(server: MessagesServer, tmp_path: Path) -> Qualify:
    def run(name: str, *options: str) -> tuple[int, dict[str, Any]]:
        report = tmp_path / name
        code = main([server.url, "--report", str(report), *options])
        return code, json.loads(report.read_text())

    return run


def test_right_answers_pass_and_both_digests_are_told(
    qualify: Qualify, server: MessagesServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = qualify("a.json", "--runs", "2")

    assert code == 0
    assert len(report["fixtures"]) == 20
    for fixture in FIXTURES:
        told = report["fixtures"][fixture.name]
        assert [each["verdict"] for each in told["attempts"]] == ["passed"] * 2, told
        assert told["case_sha256"] == fixture.case_sha256
        assert told["graders_sha256"] == fixture.graders_sha256
    assert "20 of 20 fixtures never failed" in capsys.readouterr().out
    assert len(server.requests) == 40


def test_no_fixture_may_fail_more_often_than_in_each_reference(
    qualify: Qualify, server: MessagesServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def weak(request: dict[str, Any]) -> Blocks:
        if "sort" in json.dumps(request).lower():
            return said("I do not know.")
        return knowing(request)

    qualify("right.json")
    references = ["--reference", str(tmp_path / "right.json")]
    assert qualify("same.json", *references)[0] == 0
    server.answers = weak
    code, report = qualify("weak.json", *references)
    assert (code, report["worse"]) == (1, ["sort-stable"])
    assert "| sort-stable | 1 of 1 | 0 | worse | the text is not JSON |" in capsys.readouterr().out
    code, report = qualify("again.json", *references, str(tmp_path / "weak.json"))
    assert (code, report["worse"]) == (0, [])


def test_answers_that_never_came_say_nothing_of_a_model(
    qualify: Qualify, server: MessagesServer
) -> None:
    server.faults.add("no start")
    code, report = qualify("a.json")

    assert (code, report["complete"]) == (1, False)
    assert {each["failures"] for each in report["fixtures"].values()} == {1}
    attempts = [each["attempts"][0] for each in report["fixtures"].values()]
    assert {each["verdict"] for each in attempts} == {"unanswered"}


def test_a_server_that_dies_leaves_a_report_that_is_no_reference(
    qualify: Qualify,
    server: MessagesServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.dies_after = 3
    code, report = qualify("dead.json")

    assert (code, report["complete"]) == (1, False)
    verdicts = [each["attempts"][0]["verdict"] for each in report["fixtures"].values()]
    assert verdicts == ["passed", "passed", "unanswered", *["not run"] * 17]
    with pytest.raises(SystemExit, match="2"):
        qualify("next.json", "--reference", str(tmp_path / "dead.json"))
    assert "dead.json is incomplete" in capsys.readouterr().err


def test_a_reference_that_was_asked_otherwise_is_refused(
    qualify: Qualify, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qualify("one.json")
    (tmp_path / "not.json").write_text("[]")
    for name, why in (
        ("one.json", "was asked something else: runs"),
        ("not.json", "is no report of qualify-content"),
        ("none.json", "cannot be read"),
    ):
        with pytest.raises(SystemExit, match="2"):
            qualify("two.json", "--runs", "2", "--reference", str(tmp_path / name))
        assert why in capsys.readouterr().err


def test_fixtures_that_were_edited_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    copied = tmp_path / "tools"
    shutil.copytree(REPOSITORY / "tools", copied, ignore=shutil.ignore_patterns("__pycache__"))
    changed = ["cases/arithmetic-sum.json", "cases/more.json", "graders.py"]
    for name in changed:
        with (copied / "qualification" / "content" / name).open("a") as file:
            file.write("\n")
    asked = ["http://127.0.0.1:9", "--report", str(tmp_path / "report.json")]
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "tools.qualify_content", *asked],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    told = ", ".join(changed)
    assert ended.stderr == (
        f"qualify-content: not as frozen in SHA256SUMS: {told}; put the files back\n"
    )


@pytest.mark.parametrize(
    ("kind", "expected", "wrong"),
    [
        ("text", "4", "four"),
        ("text", "one\\ntwo", "one\ntwo"),
        ("number", 5, "The answer is 5"),
        ("number", 5, "5 or 6"),
        ("json", {"a": 1}, '{"a": true}'),
        ("json", {"a": True}, '{"a": 1}'),
        ("json", {"a": "1"}, '{"a": 1}'),
        ("json", {"a": 1}, '{"a": 2, "a": 1}'),
        ("json", {"a": 1}, 'Here it is: {"a": 1}'),
        ("json", [1, 2], "[2, 1]"),
        ("json", {"a": None}, "{}"),
        ("json", [], "[" * 100_000),
        ("json", [1], f"[{'1' * 400}]"),
        ("call", {"name": "f", "input": {}}, "f()"),
    ],
)
def test_what_only_looks_right_fails(kind: str, expected: Any, wrong: str) -> None:
    assert fault({"kind": kind, "expected": expected}, Answer(wrong, ()))


def test_the_form_of_numbers_and_json_is_free_where_it_means_the_same() -> None:
    for kind, expected, text in (
        ("number", 58082, "58,082."),
        ("number", 5, "5.0"),
        ("json", {"a": 1, "b": []}, '{"b": [], "a": 1.0}'),
    ):
        assert fault({"kind": kind, "expected": expected}, Answer(text, ())) is None

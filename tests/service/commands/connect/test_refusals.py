"""What `mererun connect claude-code` cannot go on with: files and servers that are left alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.commands.connect.connecting import (
    AS_MERERUN,
    Keyed,
    connect,
    local,
    refused,
    settings,
    with_settings,
)
from tests.support.running import Running


def broken(text: str) -> Callable[[Path], object]:
    return lambda project: with_settings(project, text)


def a_link(project: Path) -> None:
    elsewhere = project.parent / "elsewhere.json"
    elsewhere.write_text("{}")
    local(project).parent.mkdir()
    local(project).symlink_to(elsewhere)


def a_folder_behind_a_link(project: Path) -> None:
    (project.parent / "elsewhere").mkdir()
    (project / ".claude").symlink_to(project.parent / "elsewhere")


def a_folder_in_its_place(project: Path) -> None:
    local(project).mkdir(parents=True)


def a_file_for_the_folder(project: Path) -> None:
    (project / ".claude").write_text("mine")


def read_only(project: Path) -> None:
    with_settings(project, "{}").chmod(0o444)


def no_folder(project: Path) -> None:
    project.rmdir()


def a_strange_undo(project: Path) -> None:
    (project / ".claude").mkdir()
    undo = {"before": {"hooks": {}}, "written": {}}
    (project / ".claude" / "mererun-undo.json").write_text(json.dumps(undo))


@pytest.mark.parametrize(
    ("arrange", "said"),
    [
        (broken('{"env": {},}'), "is not valid JSON: "),
        (broken(""), "is empty"),
        (broken("[]"), "must be a JSON object"),
        (broken('{"a": ' * 3000), "correct it"),
        (broken('{"env": []}'), "env in "),
        (broken('{"permissions": "all"}'), "permissions in "),
        (a_link, "settings.local.json is a symbolic link, to "),
        (a_folder_behind_a_link, ".claude is a symbolic link, to "),
        (a_folder_in_its_place, "is no file"),
        (a_file_for_the_folder, "cannot be "),
        (read_only, "is read-only"),
        (no_folder, "is no folder"),
        (a_strange_undo, "is not as mererun writes it"),
    ],
)
def test_files_that_cannot_be_gone_on_with_are_left_alone(
    service: Running, project: Path, arrange: Callable[[Path], object], said: str
) -> None:
    arrange(project)
    before = {each: each.lstat() for each in project.parent.rglob("a project*")}
    before |= {each: each.lstat() for each in project.rglob("*")}
    assert said in refused(connect(project, "--url", service.url, "--apply"))
    assert all(each.lstat().st_ino == stat.st_ino for each, stat in before.items())
    assert not [each for each in project.rglob("*") if each not in before]


@pytest.mark.parametrize(
    ("said", "more"),
    [
        (b"<html>", {}),
        (b"[]", {}),
        (b'{"object": "list", "data": []}', {}),
        (b"nothing", {"status": 404}),
        (b"x" * 2_000_000, {}),
    ],
)
def test_a_server_of_another_kind_is_told(
    project: Path, answering: Callable[..., str], said: bytes, more: dict[str, Any]
) -> None:
    assert "is no mererun" in refused(connect(project, "--url", answering(said, **more), "--apply"))
    assert not list(project.iterdir())


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (400, b"<html>", "(status 400: no error of the API): try again"),
        (429, b'{"error": {"message": "too much"}}', "(status 429: too much): try again"),
        (500, b"", "(status 500: "),
    ],
)
def test_a_server_that_does_not_tell_whether_it_takes_tools_is_told(
    project: Path, answering: Callable[..., str], status: int, answer: bytes, said: str
) -> None:
    url = answering(AS_MERERUN, no_tools=answer, no_tools_status=status)
    assert said in refused(connect(project, "--url", url, "--apply"))
    assert not list(project.iterdir())


def test_settings_that_change_meanwhile_are_not_overwritten(
    project: Path, answering: Callable[..., str]
) -> None:
    """The file is read first, and the service is asked then."""
    file = with_settings(project, '{"mine": 1}')
    url = answering(AS_MERERUN, meanwhile=staticmethod(lambda: file.write_text('{"mine": 2}')))
    assert "was changed by something else" in refused(connect(project, "--url", url, "--apply"))
    assert file.read_text() == '{"mine": 2}'
    assert list(file.parent.iterdir()) == [file]
    assert connect(project, "--url", url, "--apply").exit_code == 0
    assert settings(project)["mine"] == 2


def test_no_service_is_told_after_what_could_be_found_out(project: Path) -> None:
    result = connect(project, "--url", "http://127.0.0.1:1")
    assert "9.8.7" in result.stdout
    assert "start it with `mererun serve`" in refused(result)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8765", "'--url'"),
        ("ftp://127.0.0.1", "'--url'"),
        ("http://user:pw@127.0.0.1", "with a password"),
        ("http://127.0.0.1:99999", "'--url'"),
        ("http://[::1", "'--url'"),
        ("http://127.0.0.1/é", "no service answers at http://127.0.0.1/é"),
        ("http://a..b", "no service answers at http://a..b"),
    ],
)
def test_an_address_that_is_none_is_told(project: Path, url: str, said: str) -> None:
    assert said in refused(connect(project, "--url", url))


def test_a_service_that_cannot_be_used_says_why(
    service: Running, keyed: Keyed, project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    for given, said in (
        ((service.url, "--model", "qwen"), "serves glimmer, not qwen"),
        ((service.url.replace("http:", "https:"),), "speaks no TLS"),
        ((keyed.url,), "asks for an API key"),
        ((keyed.url, "--key-file", str(other)), "cannot be read"),
        ((keyed.url, "--key-file", str(keyed.key_file.parent / "keys")), "nothing else"),
    ):
        assert said in refused(connect(project, "--url", *given, "--apply"))
    other.write_text("mererun-of-another")
    given = (keyed.url, "--key-file", str(other))
    assert "does not know the key" in refused(connect(project, "--url", *given, "--apply"))
    assert not list(project.iterdir())

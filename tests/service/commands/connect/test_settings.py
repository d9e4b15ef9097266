"""`mererun connect claude-code`, with real files and real services: what it tells and writes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.commands.connect.connecting import (
    AS_MERERUN,
    Keyed,
    applied,
    connect,
    local,
    refused,
    settings,
    with_settings,
)
from tests.support.running import Running

THEIRS = """{
    "permissions": {
        "allow": [
            "Bash(ls:*)"
        ]
    },
    "env": {
        "EDITOR": "vi",
        "ANTHROPIC_MODEL": "claude-opus-4-8"
    },
    "enabledMcpjsonServers": [
        "größe"
    ]
}"""


def test_without_apply_it_is_only_told(service: Running, project: Path) -> None:
    result = connect(project, "--url", service.url)
    assert result.exit_code == 0
    for said in (
        "9.8.7",
        f"glimmer at {service.url}",
        "4,096 tokens, of which an answer may take 1,024",
        "Effort        high",
        f'env.ANTHROPIC_BASE_URL = "{service.url}"',
        "--apply does it",
        "hardly room for Claude Code's own prompt",
    ):
        assert said in result.stdout
    assert not list(project.iterdir())


def test_what_is_there_stays_as_it_is(service: Running, project: Path) -> None:
    file = with_settings(project, THEIRS)
    file.chmod(0o640)
    report = applied(project, "--url", service.url, "--model", "glimmer")
    assert report["applied"]
    text, now = file.read_text(), settings(project)
    assert text.startswith('{\n    "permissions": {\n        "allow": [\n')
    assert '"größe"' in text
    assert not text.endswith("\n")
    assert list(now) == ["permissions", "env", "enabledMcpjsonServers", "apiKeyHelper"]
    assert now["permissions"] == {"allow": ["Bash(ls:*)"], "defaultMode": "default"}
    assert list(now["env"])[:2] == ["EDITOR", "ANTHROPIC_MODEL"]
    assert now["env"]["ANTHROPIC_MODEL"] == "glimmer"
    assert file.stat().st_mode & 0o777 == 0o640
    assert {each.name for each in file.parent.iterdir()} == {file.name, "mererun-undo.json"}


def test_done_twice_it_writes_nothing(service: Running, project: Path) -> None:
    applied(project, "--url", service.url)
    before = local(project).stat()
    assert "Nothing is to be changed" in connect(project, "--url", service.url, "--apply").stdout
    assert local(project).stat() == before


def test_undone_the_file_is_what_it_was(service: Running, project: Path) -> None:
    file = with_settings(project, THEIRS)
    applied(project, "--url", service.url)
    told = connect(project, "--undo").stdout
    assert "restored  env.ANTHROPIC_MODEL\n" in told
    assert "claude-opus-4-8" not in told
    assert file.read_text() != THEIRS
    applied(project, "--undo")
    assert file.read_text() == THEIRS
    assert list(file.parent.iterdir()) == [file]


def test_undone_nothing_is_left_of_what_was_not_there(service: Running, project: Path) -> None:
    applied(project, "--url", service.url)
    applied(project, "--undo")
    assert not list(project.iterdir())
    assert "Nothing is to be changed" in connect(project, "--undo").stdout


def test_undo_keeps_what_was_changed_since_and_tells_it(service: Running, project: Path) -> None:
    applied(project, "--url", service.url)
    now = settings(project)
    now["env"] |= {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "77", "MINE": "1"}
    now["permissions"]["allow"] = ["Edit"]
    local(project).write_text(json.dumps(now))
    assert applied(project, "--undo")["kept"] == ["env.CLAUDE_CODE_MAX_OUTPUT_TOKENS"]
    assert settings(project) == {
        "env": {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "77", "MINE": "1"},
        "permissions": {"allow": ["Edit"]},
    }


def test_from_model_to_model_there_is_no_trace_of_the_last_one(
    service: Running, keyed: Keyed, project: Path
) -> None:
    applied(project, "--url", service.url)
    first = settings(project)
    assert not first["env"].keys() & {"CLAUDE_CODE_EFFORT_LEVEL", "MAX_THINKING_TOKENS"}
    assert (first["env"]["ANTHROPIC_AUTH_TOKEN"], first["apiKeyHelper"]) == ("mererun", "")
    report = applied(project, "--url", keyed.url, "--key-file", str(keyed.key_file))
    second = settings(project)
    assert second["env"]["ANTHROPIC_SMALL_FAST_MODEL"] == "plain"
    assert second["env"]["CLAUDE_CODE_EFFORT_LEVEL"] == "auto"
    assert second["env"]["MAX_THINKING_TOKENS"] == "0"
    assert "cannot use tools" in report["notes"][0]
    applied(project, "--url", service.url)
    assert settings(project) == first
    applied(project, "--undo")
    assert not list(project.iterdir())


def test_a_key_stays_in_its_file(keyed: Keyed, project: Path, home: Path) -> None:
    (home / ".claude.json").unlink()  # then the command that starts the client has the key's, too
    key = keyed.key_file.read_text().strip()
    result = connect(project, "--url", keyed.url, "--key-file", str(keyed.key_file), "--apply")
    assert result.exit_code == 0
    assert f"ANTHROPIC_AUTH_TOKEN=\"$(cat '{keyed.key_file}')\" claude" in result.stdout
    assert all(key not in each.read_text() for each in local(project).parent.iterdir())
    assert key not in result.output
    helper = settings(project)["apiKeyHelper"]
    assert subprocess.check_output(helper, shell=True, text=True).strip() == key
    assert settings(project)["env"]["ANTHROPIC_AUTH_TOKEN"] == ""


@pytest.mark.parametrize(
    ("theirs", "becomes"), [({}, "default"), ({"defaultMode": "auto"}, "default"),
                            ({"defaultMode": "plan"}, "plan")],
)  # fmt: skip
def test_a_chosen_permission_mode_stays_unless_it_needs_another_server(
    service: Running, project: Path, theirs: dict[str, str], becomes: str
) -> None:
    with_settings(project, json.dumps({"permissions": theirs}))
    for _ in range(2):
        applied(project, "--url", service.url)
        assert settings(project)["permissions"]["defaultMode"] == becomes


def test_a_permission_mode_of_the_user_is_not_overridden(
    service: Running, project: Path, home: Path
) -> None:
    (home / ".claude" / "settings.json").write_text('{"permissions": {"defaultMode": "plan"}}')
    applied(project, "--url", service.url)
    assert "permissions" not in settings(project)


def test_what_gets_in_the_way_is_named_and_its_value_is_not(
    service: Running, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".claude" / "settings.json").write_text('{"apiKeyHelper": "echo secret"}')
    (home / "managed" / "managed-settings.json").write_text(
        '{"env": {"ANTHROPIC_BASE_URL": "https://secret.example"}, "forceLoginMethod": "console"}'
    )
    with_settings(project, '{"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}')
    (project / ".claude" / "settings.json").write_text('{"env": {"ENABLE_TOOL_SEARCH": "auto"}}')
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("CLAUDE_CODE_EFFORT_LEVEL", "lowest")
    told = connect(project, "--url", service.url).stdout
    assert "secret" not in told
    for said in (
        f"apiKeyHelper is in the user settings {home}/.claude/settings.json: it does not count",
        "env.ANTHROPIC_API_KEY is in the environment: it does not count",
        f"env.ANTHROPIC_BASE_URL is in the managed settings {home}/managed/managed-settings.json",
        "managed-settings.json: it counts, and not what is set here",
        "forceLoginMethod is in the managed settings",
        "env.CLAUDE_CODE_USE_BEDROCK is in the local settings: Claude Code will not",
        "ENABLE_TOOL_SEARCH is auto",
        "CLAUDE_CODE_EFFORT_LEVEL is lowest, and glimmer knows low, medium, high, xhigh, max",
    ):
        assert said in told


def test_what_is_told_is_no_command_to_a_terminal(
    project: Path, answering: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_TOOL_SEARCH", "\x1b[2J")
    strange = project / "odd\udcff\n"
    strange.mkdir()
    url = answering(AS_MERERUN, no_tools=b'{"error": {"message": "\\u001b[2J\\n"}}')
    told = connect(strange, "--url", url).stdout
    assert "\x1b" not in told
    assert "odd??" in told
    assert "(?[2J?)" in told
    assert applied(strange, "--url", url)["settings"] == str(local(strange))
    refusal = b'{"error": {"message": "no\\u001b\\nno"}}'
    assert "no??no" in refused(connect(project, "--url", answering(refusal, status=403)))


def test_a_client_that_was_never_set_up_is_started_with_variables(
    service: Running, project: Path, home: Path
) -> None:
    start = f"cd '{project}' && claude"
    assert applied(project, "--url", service.url)["start"] == start
    (home / ".claude.json").unlink()
    variables = f"ANTHROPIC_BASE_URL={service.url} ANTHROPIC_AUTH_TOKEN=mererun"
    assert variables in applied(project, "--url", service.url)["start"]


def test_a_client_that_is_not_there_or_does_not_work_is_told(
    service: Running, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "bin" / "claude").write_text("#!/bin/sh\nexit 1\n")
    assert "does not tell its version" in connect(project, "--url", service.url).stdout
    (home / "bin" / "claude").unlink()
    monkeypatch.setenv("PATH", f"{home}/bin")
    assert "npm install" in connect(project, "--url", service.url).stdout


def test_it_is_told_what_git_would_take(service: Running, project: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    ignored = project / ".gitignore"
    ignored.write_text(".claude/settings.local.json\n")
    (said,) = (each for each in applied(project, "--url", service.url)["notes"] if "git" in each)
    assert "mererun-undo.json" in said
    assert "settings.local.json" not in said
    ignored.write_text(".claude/*\n")
    assert "git" not in str(applied(project, "--url", service.url)["notes"])


@pytest.mark.parametrize("given", ["{}/", "{}/v1", "{}/v1/"])
def test_an_address_may_be_written_as_other_clients_want_it(
    service: Running, project: Path, given: str
) -> None:
    applied(project, "--url", given.format(service.url))
    assert settings(project)["env"]["ANTHROPIC_BASE_URL"] == service.url

"""`mererun connect claude-code`, with real files and real services."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from service.auth import add_key
from service.cli import main
from service.connect import surroundings
from tests.support.running import Running, scripted_service
from tests.support.tiny_glimmer import write_tiny_glimmer

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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its model thinks, and has tools and efforts."""
    folder = tmp_path_factory.mktemp("service")
    with scripted_service(write_tiny_glimmer(folder / "glimmer"), folder / "data") as running:
        yield running


class Answering(BaseHTTPRequestHandler):
    """Says the same to everything, but for what it is not able to."""

    said: bytes
    status = 200
    key: str | None = None
    no_tools: bytes | None = None
    no_tools_status = 400
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def do_GET(self) -> None:
        type(self).meanwhile()
        if self.key in (None, self.headers["x-api-key"]):
            self._answer(self.status, self.said)
        else:
            self._answer(401, b'{"error": {"message": "who are you?"}}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = 200 if self.no_tools is None else self.no_tools_status
        self._answer(status, self.said if self.no_tools is None else self.no_tools)

    def _answer(self, status: int, said: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        with suppress(ConnectionError):  # long ones are not heard out
            self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """A server that says what it is told to."""
    servers: list[HTTPServer] = []

    def start(said: bytes, **more: Any) -> str:
        kind = type("Answers", (Answering,), {"said": said, **more})
        servers.append(HTTPServer(("127.0.0.1", 0), kind))
        Thread(target=servers[-1].serve_forever, args=(0.01,)).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for each in servers:
        each.shutdown()
        each.server_close()


NO = {"supported": False}
PLAIN = {
    "id": "plain",
    "max_input_tokens": 262_144,
    "max_tokens": 262_144,
    "capabilities": {"effort": NO, "thinking": {"supported": False, "types": {"adaptive": NO}}},
}
AS_MERERUN = json.dumps({"type": "runtime", "data": [PLAIN]}).encode()


@dataclass(frozen=True)
class Keyed:
    url: str
    key_file: Path


@pytest.fixture
def keyed(tmp_path: Path, answering: Callable[..., str]) -> Keyed:
    """It asks for a key, and its model has nothing but text."""
    key = add_key(tmp_path / "keys")[1]
    key_file = tmp_path / "my key"
    key_file.write_text(key + "\n")
    key_file.chmod(0o600)
    no_tools = b'{"error": {"message": "tools: no"}}'
    return Keyed(answering(AS_MERERUN, key=key, no_tools=no_tools), key_file)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has set up Claude Code, on a machine that nobody manages."""
    home = tmp_path / "home"
    for folder in (home / ".claude", home / "bin", home / "managed"):
        folder.mkdir(parents=True)
    (home / "bin" / "claude").write_text("#!/bin/sh\necho '9.8.7 (Claude Code)'\n")
    (home / "bin" / "claude").chmod(0o755)
    (home / ".claude.json").write_text('{"hasCompletedOnboarding": true}')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/bin", prepend=":")
    for name in ("CLAUDE_CONFIG_DIR", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(surroundings, "managed_folder", lambda: home / "managed")
    return home


@pytest.fixture
def project(tmp_path: Path, home: Path) -> Path:
    project = tmp_path / "a project"
    project.mkdir()
    return project


def connect(project: Path, *arguments: str) -> Result:
    command = ["connect", "claude-code", "--dir", str(project), *arguments]
    return CliRunner().invoke(main, command, catch_exceptions=False)


def applied(project: Path, *arguments: str) -> dict[str, Any]:
    result = connect(project, *arguments, "--apply", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def local(project: Path) -> Path:
    return project / ".claude" / "settings.local.json"


def settings(project: Path) -> dict[str, Any]:
    return json.loads(local(project).read_text())


def with_settings(project: Path, text: str) -> Path:
    local(project).parent.mkdir()
    local(project).write_text(text)
    return local(project)


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


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

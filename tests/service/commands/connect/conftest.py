"""Services, a home and a project, for the tests of `mererun connect claude-code`."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from service.auth import add_key
from service.connect import surroundings
from tests.service.commands.connect.connecting import AS_MERERUN, Keyed
from tests.support.running import Running, scripted_service
from tests.support.tiny_glimmer import write_tiny_glimmer


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

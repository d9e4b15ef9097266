"""The Claude Code that is installed."""

import shutil
import subprocess
from dataclasses import dataclass

_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Client:
    """`version` is what the program says of itself, None if it says nothing."""

    path: str
    version: str | None


def installed_client() -> Client | None:
    """The `claude` that a shell would start; None if there is none."""
    path = shutil.which("claude")
    if path is None:
        return None
    try:
        said = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Client(path, None)
    return Client(path, next(iter(said.stdout.split()), None) if said.returncode == 0 else None)

"""What else tells Claude Code how to work in a folder, and whether it gets in the way."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from service.connect.changes import value_of

# None of these is undone by an address of one's own: the client then goes elsewhere, or to a login.
_IN_THE_WAY = (
    "env.CLAUDE_CODE_USE_BEDROCK",
    "env.CLAUDE_CODE_USE_VERTEX",
    "env.CLAUDE_CODE_USE_FOUNDRY",
    "env.CLAUDE_CODE_OAUTH_TOKEN",
    "forceLoginMethod",
)


Effect = Literal["overridden", "stronger", "in the way"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key that is set in another place: `where` is that. It is `overridden` in the folder,
    `stronger` than what is set there, or `in the way` whatever is set."""

    where: str
    key: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Source:
    """One place that settings come from; `values` is empty where it has none, or no JSON."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All places that count, but for the folder's own `settings.local.json`: that is stronger than
    all but `managed`. `others` have the stronger ones first."""

    managed: tuple[Source, ...]
    others: tuple[Source, ...]
    was_set_up: bool  # the client, at some time

    @classmethod
    def of(cls, folder: Path) -> "Surroundings":
        home = os.environ.get("CLAUDE_CONFIG_DIR")
        config = Path(home) if home else Path.home() / ".claude"
        state = (Path(home) if home else Path.home()) / ".claude.json"
        managed = managed_folder()
        return cls(
            managed=tuple(
                _source("the managed settings", path)
                for path in (
                    *sorted((managed / "managed-settings.d").glob("*.json"), reverse=True),
                    managed / "managed-settings.json",
                )
            ),
            others=(
                _source("the project settings", folder / ".claude" / "settings.json"),
                _source("the user settings", config / "settings.json"),
                Source("the environment", {"env": dict(os.environ)}),
            ),
            was_set_up=value_of(_object_in(state), "hasCompletedOnboarding", None) is True,
        )

    def value(self, key: str, local: Mapping[str, Any]) -> Any:
        """What is in effect beside what we set, with the folder's own `local` settings."""
        own = Source("the local settings", local)
        for source in (*self.managed, own, *self.others):
            if (value := value_of(source.values, key, None)) is not None:
                return value
        return None

    def conflicts(self, ours: Mapping[str, Any], local: Mapping[str, Any]) -> list[Conflict]:
        """Where other places differ from `ours`, or have what gets in the way of any."""
        own = Source("the local settings", local)
        return [
            *_differing(self.managed, "stronger", ours),
            *_differing(self.others, "overridden", ours),
            *(
                Conflict(source.name, key, "in the way")
                for source in (*self.managed, own, *self.others)
                for key in _IN_THE_WAY
                if value_of(source.values, key, "") not in ("", "0")
            ),
        ]


def _differing(
    sources: Iterable[Source], effect: Effect, ours: Mapping[str, Any]
) -> Iterator[Conflict]:
    for source in sources:
        for key, value in ours.items():
            # The mode is chosen by what the others say.
            if key != "permissions.defaultMode" and value_of(source.values, key, value) != value:
                yield Conflict(source.name, key, effect)


def managed_folder() -> Path:
    """Where an administrator's settings are."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support/ClaudeCode")
    return Path("/etc/claude-code")


def ignored_by_git(folder: Path, name: Path) -> bool:
    """Whether `name` stays out of commits; so it does where there is no repository, or no git."""
    try:
        asked = subprocess.run(
            ["git", "check-ignore", "--quiet", str(name)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError:
        return True
    return asked.returncode != 1


def _source(name: str, path: Path) -> Source:
    return Source(f"{name} {path}", _object_in(path))


def _object_in(path: Path) -> Mapping[str, Any]:
    """Empty where the client would ignore the file, too."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}

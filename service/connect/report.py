"""What `mererun connect claude-code` tells, as JSON: what is there, what changes, what to mind."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.connect.changes import Changed, differences
from service.connect.claude_code import is_small, output_tokens, settings_for
from service.connect.client import installed_client
from service.connect.connection import SETTINGS, UNDO, Connection
from service.connect.own_key import OwnKey
from service.connect.running_service import NotConnected, RunningService, ask
from service.connect.surroundings import Surroundings, ignored_by_git

_EFFORT = "env.CLAUDE_CODE_EFFORT_LEVEL"


def undoing(connection: Connection) -> tuple[dict[str, Any], Changed]:
    """What is to be changed, in words and as it is."""
    changed = connection.without
    return _changes(connection, changed, {}), changed


def connecting(
    folder: Path, connection: Connection, url: str, model: str | None, key: OwnKey | None
) -> tuple[dict[str, Any], Changed | None]:
    """What is there and what is to be changed, in words; and the change, None where no service
    answers: `service` then has the `error`."""
    surroundings, client = Surroundings.of(folder), installed_client()
    local = connection.without.settings
    facts: dict[str, Any] = {"client": client and asdict(client)}
    try:
        service = ask(url, model, key and key.key)
    except NotConnected as error:
        facts["service"] = {"url": url, "error": str(error)}
        facts["conflicts"] = [asdict(each) for each in surroundings.conflicts({}, local)]
        return facts, None
    mode = surroundings.value("permissions.defaultMode", local)
    wanted = settings_for(service, key, mode)
    changed = connection.with_settings(wanted)
    effort = None if _EFFORT in wanted else surroundings.value(_EFFORT, local) or "high"
    return {
        **facts,
        "service": asdict(service),
        "output_tokens": output_tokens(service),
        "effort": effort,
        "tool_search": _tool_search(surroundings, local),
        **_changes(connection, changed, wanted),
        "conflicts": [asdict(each) for each in surroundings.conflicts(wanted, local)],
        "notes": list(_notes(folder, service, key, effort)),
        "start": _start(folder, url, key, first=not surroundings.was_set_up),
    }, changed


def _changes(connection: Connection, changed: Changed, wanted: Mapping[str, Any]) -> dict[str, Any]:
    keys = sorted({*connection.undo.written, *wanted})
    different = differences(connection.file.value, changed.settings, wanted, keys)
    return {
        "settings": str(connection.file.path),
        "changes": [asdict(each) for each in different],
        "kept": changed.kept,
    }


def _tool_search(surroundings: Surroundings, local: Mapping[str, Any]) -> str:
    if surroundings.value("env.CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", local) in ("1", "true"):
        return "off, by CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"
    asked = surroundings.value("env.ENABLE_TOOL_SEARCH", local)
    return f"ENABLE_TOOL_SEARCH is {asked}" if asked else "as Claude Code decides"


def _notes(
    folder: Path, service: RunningService, key: OwnKey | None, effort: str | None
) -> Iterator[str]:
    if service.without_tools is not None:
        yield (
            f"{service.model} cannot use tools, and Claude Code always offers some: its requests "
            f"will be refused ({service.without_tools}); serve another model"
        )
    elif is_small(service):
        yield (
            "the context has hardly room for Claude Code's own prompt and tools: `claude --bare "
            f"--settings {SETTINGS}` has less of both, or serve a model with a longer context"
        )
    if effort not in (None, "auto", *service.efforts):
        yield (
            f"CLAUDE_CODE_EFFORT_LEVEL is {effort}, and {service.model} knows "
            f"{', '.join(service.efforts)}: its requests will be refused"
        )
    if key and key.others_can_read:
        yield f"others on this machine can read {key.path}: `chmod 600` keeps them from it"
    if exposed := [str(each) for each in (SETTINGS, UNDO) if not ignored_by_git(folder, each)]:
        yield f"git does not ignore {' and '.join(exposed)}, which are of this machine only"


def _start(folder: Path, url: str, key: OwnKey | None, *, first: bool) -> str:
    """A client that was never set up looks for its makers' service before it reads settings of a
    project; variables it has from the start."""
    start = f"cd {shlex.quote(str(folder))} && "
    if first:
        token = f'"$({key.command})"' if key else "mererun"
        start += f"ANTHROPIC_BASE_URL={shlex.quote(url)} ANTHROPIC_AUTH_TOKEN={token} "
    return start + "claude"

"""`mererun connect`: have a client's sessions in a folder answered by a service."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson

from service.commands.one_line import OneLineErrors, Refusal
from service.commands.options import json_option
from service.commands.user_path import UserPath
from service.connect.changes import Changed, differences
from service.connect.claude_code import is_small, output_tokens, settings_for
from service.connect.client import installed_client
from service.connect.connection import SETTINGS, UNDO, Connection
from service.connect.own_key import OwnKey, OwnKeyError
from service.connect.running_service import NotConnected, RunningService, ask, base_url
from service.connect.settings_file import SettingsFileError
from service.connect.surroundings import Surroundings, ignored_by_git
from service.settings import Settings

_DEFAULT_URL = f"http://{Settings().host}:{Settings().port}"
_EFFORT = "env.CLAUDE_CODE_EFFORT_LEVEL"


@click.group(cls=OneLineErrors)
def connect() -> None:
    """Have the sessions of a client answered by a service."""


def _address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return base_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@connect.command("claude-code")
@click.option(
    "--dir",
    "folder",
    type=UserPath(),
    default=".",
    help="The project: it is for sessions in this folder.",
    show_default="where you are",
)
@click.option("--model", help="The model that must be served.", show_default="the one that is")
@click.option(
    "--url", default=_DEFAULT_URL, callback=_address, help="The service.", show_default=True
)
@click.option("--key-file", type=UserPath(), help="A file with your API key for it, and no more.")
@click.option("--undo", "undoes", is_flag=True, help="Have the settings as they were before.")
@click.option("--apply", "applies", is_flag=True, help="Do what else is only told.")
@json_option
def claude_code(
    folder: Path,
    model: str | None,
    url: str,
    key_file: Path | None,
    undoes: bool,
    applies: bool,
    as_json: bool,
) -> None:
    """Have Claude Code in a project answered by a running service, or no longer, with --undo.

    Tells what is in the way, and what is to be changed in the project's
    .claude/settings.local.json; with --apply it is.
    """
    folder = folder.resolve()
    try:
        connection = Connection.of(folder)
        if undoes:
            facts, changed = _undoing(connection)
        else:
            key = OwnKey.read(key_file) if key_file else None
            facts, changed = _connecting(folder, connection, url, model, key)
        if applies and changed is not None:
            connection.put(changed)
    except (SettingsFileError, OwnKeyError) as error:
        raise Refusal(str(error)) from error
    facts["applied"] = applies and changed is not None
    if as_json:
        click.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
    else:
        click.echo("\n".join(_page(facts)))
    if changed is None:
        raise Refusal(facts["service"]["error"])


def _undoing(connection: Connection) -> tuple[dict[str, Any], Changed]:
    changed = connection.without
    return _changes(connection, changed, {}), changed


def _connecting(
    folder: Path, connection: Connection, url: str, model: str | None, key: OwnKey | None
) -> tuple[dict[str, Any], Changed | None]:
    """What is there, and what is to be changed: None where no service answers."""
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
    if surroundings.value("env.CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", local):
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


def _page(facts: Mapping[str, Any]) -> Iterator[str]:
    if "service" in facts:
        yield from _state(facts)
    if "settings" in facts:
        yield from _what_changes(facts)
    for conflict in facts.get("conflicts", ()):
        yield f"{conflict['key']} is in {conflict['where']}: {_EFFECTS[conflict['effect']]}"
    for note in facts.get("notes", ()):
        yield f"Note: {note}."
    if "start" in facts and facts["applied"]:
        yield f"Start it: {facts['start']}"


_EFFECTS = {
    "overridden": "it does not count in this project",
    "stronger": "it counts, and not what is set here; ask whoever manages this machine",
    "in the way": "Claude Code will not ask this service before you take it out",
}


def _state(facts: Mapping[str, Any]) -> Iterator[str]:
    client, service = facts["client"], facts["service"]
    if client is None:
        yield "Claude Code   not found: install it with `npm install -g @anthropic-ai/claude-code`"
    else:
        yield f"Claude Code   {client['version'] or 'does not tell its version'}, {client['path']}"
    if "error" in service:
        yield f"Service       {service['url']}: not to be used"
        return
    yield f"Service       {service['model']} at {service['url']}"
    yield (
        f"Context       {service['context_tokens']:,} tokens, "
        f"of which an answer may take {facts['output_tokens']:,}"
    )
    yield f"Thinking      {'as the model decides' if service['thinks'] else 'none'}"
    yield f"Effort        {facts['effort'] or 'none is asked for'}"
    yield f"Tool search   {facts['tool_search']}"


def _what_changes(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"Settings      {facts['settings']}"
    for change in facts["changes"]:
        value = "" if change["value"] is None else f" = {orjson.dumps(change['value']).decode()}"
        yield f"  {change['does']:<9} {change['key']}{value}"
    for key in facts["kept"]:
        yield f"  kept      {key}, which was changed since"
    if not facts["changes"]:
        yield "Nothing is to be changed."
    elif facts["applied"]:
        yield "This was done."
    else:
        yield "Nothing was changed yet: --apply does it."

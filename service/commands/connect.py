"""`mererun connect`: have a client's sessions in a folder answered by a service."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from service.commands.one_line import OneLineErrors, Refusal
from service.commands.options import json_option
from service.commands.user_path import UserPath
from service.connect.connection import Connection
from service.connect.own_key import OwnKey, OwnKeyError
from service.connect.report import connecting, undoing
from service.connect.running_service import base_url
from service.connect.settings_file import SettingsFileError
from service.settings import Settings

_DEFAULT_URL = f"http://{Settings().host}:{Settings().port}"


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
    folder = folder.absolute()
    try:
        connection = Connection.of(folder)
        if undoes:
            facts, changed = undoing(connection)
        else:
            key = OwnKey.read(key_file) if key_file else None
            facts, changed = connecting(folder, connection, url, model, key)
        if applies and changed is not None:
            connection.put(changed)
    except (SettingsFileError, OwnKeyError) as error:
        raise Refusal(_printable(str(error))) from error
    facts["applied"] = applies and changed is not None
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(map(_printable, _page(facts))))
    if changed is None:
        raise Refusal(_printable(facts["service"]["error"]))


def _printable(line: str) -> str:
    """Without what terminals obey: projects, services and file names may say anything."""
    return "".join(each if each.isprintable() else "?" for each in line)


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
        value = "" if change["value"] is None else f" = {json.dumps(change['value'])}"
        yield f"  {change['does']:<9} {change['key']}{value}"
    for key in facts["kept"]:
        yield f"  kept      {key}, which was changed since"
    if not facts["changes"]:
        yield "Nothing is to be changed."
    elif facts["applied"]:
        yield "This was done."
    else:
        yield "Nothing was changed yet: --apply does it."

"""The `mererun` command."""

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from models.catalog import Checkpoint
from service.auth import KeyFileError, add_key
from service.commands.amount import Amount
from service.commands.connect import connect
from service.commands.models import models
from service.commands.one_line import OneLineErrors, Refusal
from service.commands.options import data_dir_option, database_option, option
from service.commands.user_path import UserPath
from service.listener import ListenError
from service.serving import StartError, serve
from service.settings import Settings
from storage.errors import StorageError

_DEFAULTS = Settings()


class _Commands(OneLineErrors):
    """`runs` is `tools/inspect-runs`, imported when it is asked for: serving does without it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "runs"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "runs":
            return super().get_command(ctx, cmd_name)
        from tools.inspect_runs import main as runs

        return runs


@click.group(cls=_Commands)
def main() -> None:
    """Serve the Anthropic Messages API from a model on this machine."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    for name in ("alembic", "hypercorn", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)


_path = UserPath()


@main.command("serve")
@option(
    "--model", "An installed model, or a model folder.", default=_DEFAULTS.model, show_default=True
)
@option("--host", "Address to listen on.", default=_DEFAULTS.host, show_default=True)
@option(
    "--port",
    "Port to listen on; 0 takes a free one.",
    default=_DEFAULTS.port,
    type=click.IntRange(0, 65535),
    show_default=True,
)
@data_dir_option
@database_option
@option(
    "--context-tokens", "Limit the context to less than the model's own.", type=click.IntRange(16)
)
@option("--max-output-tokens", "Limit what a request may ask for.", type=click.IntRange(1))
@option("--api-key-file", "Ask for one of this file's keys; see `mererun keys add`.", type=_path)
@option(
    "--retain-days",
    "Remove runs that ended longer ago, with their records.",
    type=Amount(0, min_open=True),
)
@option(
    "--retain-gib",
    "Remove the oldest runs while all records together take more disk.",
    type=Amount(0, min_open=True),
)
@option(
    "--cache-memory-gib",
    "Keep computed prompts in at most so much memory; 0 keeps none.",
    type=Amount(0),
    show_default="an eighth of the machine's",
)
@option(
    "--cache-disk-gib",
    "Keep computed prompts in at most so much disk, too, over restarts; 0 keeps none there.",
    type=Amount(0),
    default=_DEFAULTS.cache_disk_gib,
    show_default=True,
)
@option(
    "--speculation",
    "Whether tokens are drafted, and many verified at a time, where that is faster.",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
)
@option(
    "--draft-model",
    "Draft with this smaller model, or with this companion of the model.",
    show_default="the companion that is shipped for the model, if any",
)
@option(
    "--grammar",
    "Whether calls and structured output are held to their schemas while they are written.",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
)
@option(
    "--ignore-unsupported-hints",
    "Answer requests for an effort that the model does not have, and say so in a header.",
    is_flag=True,
)
@option(
    "--file-limit-mib",
    "Take uploaded files of at most so much each.",
    type=click.IntRange(1),
    default=_DEFAULTS.file_limit_mib,
    show_default=True,
)
@option(
    "--allow-document-urls",
    "Read documents that requests name by a URL, from public addresses only.",
    is_flag=True,
)
@option("--ready-file", "Write {url, pid} here once ready.", type=_path)
@option(
    "--record-content",
    "Whether run records keep texts and tokens, or their shapes, counts and timings only.",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
)
def serve_command(record_content: str, speculation: str, grammar: str, **options: Any) -> None:
    """Serve until interrupted."""
    settings = Settings(
        record_content=record_content == "on",
        speculation=speculation == "on",
        grammar=grammar == "on",
        **options,
    )
    try:
        anyio.run(serve, settings, partial(_announce, with_key=settings.api_key_file is not None))
    except (StartError, KeyFileError, ListenError, StorageError) as error:
        raise Refusal(str(error)) from error


def _announce(url: str, checkpoint: Checkpoint, *, with_key: bool) -> None:
    body = (
        f'{{"model": "{checkpoint.id}", "max_tokens": 64, "temperature": 0, '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    headers = "-H 'content-type: application/json'" + with_key * " -H 'x-api-key: YOUR KEY'"
    connect_with = f"--url {url}" + with_key * " --key-file FILE"
    click.echo(
        f"mererun is ready: {checkpoint.display_name} at {url}\n\n"
        f"curl {url}/v1/messages {headers} \\\n  -d '{body}'\n\n"
        f"For Claude Code, in a project: mererun connect claude-code {connect_with} --apply\n"
    )


@main.group("keys")
def keys() -> None:
    """Keys for a service that others may reach."""


@keys.command("add")
@option("--api-key-file", "The key file to add to.", type=_path, required=True)
def keys_add(api_key_file: Path) -> None:
    """Make a key, print it once, and keep its digest."""
    try:
        key_id, key = add_key(api_key_file)
    except KeyFileError as error:
        raise Refusal(str(error)) from error
    click.echo(f"{key}\n", nl=False)
    click.echo(
        f"{key_id} was added to {api_key_file}; the key is not shown again. A service that is "
        "running knows it after a restart.",
        err=True,
    )


main.add_command(models)
main.add_command(connect)


if __name__ == "__main__":
    main()

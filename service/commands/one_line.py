"""Errors of the command line: one line that says what to do, and exit code 2."""

from typing import Any

import click

from models.catalog import CheckpointError


class Refusal(click.ClickException):
    """What the user must change before the command can work."""

    exit_code = 2


class OneLineErrors(click.Group):
    """Turns a `CheckpointError` of any command, and its wrong use, into a `Refusal`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Refusal(error.format_message()) from error
        except CheckpointError as error:
            raise Refusal(str(error)) from error

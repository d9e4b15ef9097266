"""Amounts that a person gives."""

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A number within bounds. Not NaN, which passes every bound, and not infinity, which is none of
    any unit."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        amount = super().convert(value, param, ctx)
        if not math.isfinite(amount):
            self.fail(f"{value!r} is not a number", param, ctx)
        return amount

"""The schema on PostgreSQL."""

from typing import Any


def create_schema(op: Any) -> None:
    raise NotImplementedError

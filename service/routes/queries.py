"""What the routes' queries have in common."""

from quart import request

from service.errors import ApiError


def limit(default: int, most: int) -> int:
    """`?limit=`, from 1 to `most`. Raises ApiError 400."""
    text = request.args.get("limit")
    if text is None:
        return default
    if (number := _number(text)) is None or not 1 <= number <= most:
        raise ApiError.invalid(f"limit: Input should be an integer from 1 to {most}")
    return number


def events_after() -> int:
    """The number of the last event that a reader has: the header `Last-Event-ID`, else `?after=`,
    else 0. Raises ApiError 400.

    A client that connects again sends the header, with the address it had.
    """
    for name, text in (
        ("Last-Event-ID", request.headers.get("Last-Event-ID")),
        ("after", request.args.get("after")),
    ):
        if not text:
            continue
        if (number := _number(text)) is None:
            raise ApiError.invalid(f"{name}: Input should be the number of an event, or 0")
        return number
    return 0


def _number(text: str) -> int | None:
    """Of ASCII digits, as many as fit 64 bits."""
    return int(text[:18]) if text.isascii() and text.isdigit() else None

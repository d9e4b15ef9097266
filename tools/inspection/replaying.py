"""An answer as it streamed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def piece(event: dict[str, Any]) -> str:
    """The text that streamed with an event; where the record keeps no content, a dot stands for
    each character."""
    if event["event"] != "tokens":
        return ""
    return event["text"] if "text" in event else "·" * event["chars"]


def pieces(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    """The streamed texts, each with the seconds from the run's arrival to it."""
    for event in events:
        if text := piece(event):
            yield event["at"] - events[0]["at"], text


def streamed_text(events: Sequence[dict[str, Any]]) -> str:
    return "".join(text for _, text in pieces(events))


def replay(
    events: Sequence[dict[str, Any]],
    show: Callable[[str], None],
    wait_until: Callable[[float], None] | None,
) -> None:
    """Give each piece to `show`, after `wait_until` its seconds since the arrival."""
    for seconds, text in pieces(events):
        if wait_until is not None:
            wait_until(seconds)
        show(text)

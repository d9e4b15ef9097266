"""What a run's events say."""

import random

from models.engine.protocol import Finished, JobEvent, Prefill, Tokens


def prompt_of(length: int) -> list[int]:
    """Ids that mean nothing; always the same for one length, and others for another."""
    return random.Random(length).choices(range(256), k=length)


def tokens_of(events: list[JobEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


def prefilled(events: list[JobEvent]) -> list[tuple[int, int]]:
    return [(event.done, event.total) for event in events if isinstance(event, Prefill)]


def ending(events: list[JobEvent]) -> Finished:
    *_, finished = events
    assert isinstance(finished, Finished)
    return finished

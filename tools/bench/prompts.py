"""Prompts of a wanted length, no two alike."""

import random
from typing import Any

from models.catalog import Checkpoint
from models.conversation import Conversation, Turn
from models.families import family_of

_WORDS = (
    *("river", "mountain", "window", "garden", "morning", "letter", "bridge", "market", "winter"),
    *("story", "music", "island", "forest", "teacher", "silver", "engine", "paper", "harbour"),
    *(
        "yellow",
        "machine",
        "village",
        "summer",
        "doctor",
        "kitchen",
        "travel",
        "history",
        "picture",
    ),
    *("animal", "number", "water", "evening", "station", "flower", "country", "captain", "castle"),
)
_SYSTEM = "You write long stories."
# What a small model goes on with for hundreds of tokens, whatever the words are.
_QUESTION = "Write a very long story with many chapters. Use these words: "


def words(count: int, seed: int) -> str:
    """Words at random; `seed` decides which."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


class Prompts:
    """Requests, and the token ids that the service makes of them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._family = family_of(checkpoint)

    def ids(self, text: str, system: str | None = _SYSTEM) -> list[int]:
        """The prepared prompt of a request with this one user turn."""
        turns = [Turn.of("user", text)]
        if system is not None:
            turns.insert(0, Turn.of("system", system))
        return self._family.render(Conversation(tuple(turns))).ids.tolist()

    def of_length(self, tokens: int, seed: int) -> str:
        """A user turn whose prepared prompt has as nearly as possible, and at most, `tokens`."""
        least, most = 1, tokens
        while least < most:
            middle = (least + most + 1) // 2
            fits = len(self.ids(_QUESTION + words(middle, seed))) <= tokens
            least, most = (middle, most) if fits else (least, middle - 1)
        return _QUESTION + words(least, seed)


def request(text: str, max_tokens: int) -> dict[str, Any]:
    """A greedy Messages request."""
    return {
        "model": "claude-bench",
        "max_tokens": max_tokens,
        "temperature": 0,
        "system": _SYSTEM,
        "messages": [{"role": "user", "content": text}],
    }

"""Turns of the model, written with the very tokens that it generated."""

from collections.abc import Iterable

from models.conversation import Turn
from models.families.prompt_tokens import PromptTokens


class OwnTokens:
    """`markers` are the special tokens that may stand in an answer, or begin it.

    What else a model may generate would be another's turn, or what clients have not been shown; an
    answer with such tokens is written from its blocks.
    """

    def __init__(self, tokens: PromptTokens, markers: Iterable[int]) -> None:
        self._foreign = frozenset(tokens.special.values()).difference(markers)

    def of(self, turn: Turn) -> tuple[int, ...]:
        """The turn from its first token on, without the one that the model ended it with, which
        need not be the family's. Nothing for a turn that is to be written from its blocks."""
        said = turn.tokens[:-1]
        return said if self._foreign.isdisjoint(said) else ()

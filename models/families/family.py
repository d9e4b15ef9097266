"""What a family is: how one kind of checkpoint reads a conversation and writes an answer."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from models.conversation import Conversation
from models.parsing.answer import AnswerParser


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A rendered conversation: token ids as unsigned 32-bit integers."""

    ids: "array[int]"


class Family(ABC):
    """Rendering needs the tokenizer alone, never weights; counting and generating share it."""

    name: str
    stop_ids: frozenset[int]

    @abstractmethod
    def render(self, conversation: Conversation) -> PreparedPrompt:
        """Slow for long conversations: to be called off the event loop."""

    @abstractmethod
    def parser(self, stop_sequences: Sequence[str]) -> AnswerParser:
        """A parser for one answer to a rendered conversation."""

"""What a family is: how one kind of checkpoint reads a conversation and writes an answer."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from models.conversation import AnswerForm, Conversation, Effort
from models.grammar.guide_spec import GuideSpec
from models.parsing.answer import AnswerParser

ThinkingKind = Literal["adaptive", "enabled", "between_tools"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be asked of a family, beside plain text."""

    tools: bool = False
    structured_outputs: bool = False
    thinking: frozenset[ThinkingKind] = field(default_factory=frozenset[ThinkingKind])
    efforts: tuple[Effort, ...] = ()
    images: bool = False


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A rendered conversation: token ids as unsigned 32-bit integers.

    `opens` is where it leaves off, in the family's own words; its parser and guide go on from
    there. `answer_from` is the place in `ids` where the turn that the answer goes on with begins;
    None where an answer is not to be written down again by its tokens.
    """

    ids: "array[int]"
    opens: str = "text"
    answer_from: int | None = None


class Family(ABC):
    """Rendering needs the tokenizer alone, never weights; counting and generating share it."""

    name: str
    stop_ids: frozenset[int]
    capabilities = Capabilities()

    @abstractmethod
    def render(self, conversation: Conversation) -> PreparedPrompt:
        """Asks for nothing that the capabilities lack. Raises NotRendered for a conversation that
        the family cannot write down. Slow for long ones: to be called off the event loop."""

    @abstractmethod
    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        """A parser for one answer of that form, to a prompt that left off there."""

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        """What is encoded at once of turns that say this, without what the family adds: as much as
        encoding has to have room for."""
        return turns

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        """How the engine is to guide such an answer; None when any token may follow any other.

        Raises GrammarError for schemas that no grammar can be made of.
        """
        return None


class NotRendered(Exception):
    """A conversation that a family cannot write down. One sentence for people that says why, and
    names the turn."""

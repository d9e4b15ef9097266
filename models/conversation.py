"""Family-neutral conversation: what families render, and what parsers emit."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of text. Roles may appear in any order, a system turn anywhere."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A normalised conversation: no two neighbouring turns share a role.

    A last turn by the assistant is a prefill: the answer continues its text.
    """

    turns: tuple[Turn, ...]

    @property
    def prefills(self) -> bool:
        return bool(self.turns) and self.turns[-1].role == "assistant"

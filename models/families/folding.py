"""System turns in families that have none, or none but the first."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from models.conversation import Role, Turn


def folded(turns: Sequence[Turn], *, keeps_first: bool) -> list[Turn]:
    """Turns that begin with the user's and alternate; if `keeps_first`, after a first system turn.

    A system turn becomes the user's: the first as it is, later ones as a tagged reminder. So no
    turn changes what stands before it, and what was rendered once begins all later prompts. Before
    an assistant that speaks first, the user says nothing.
    """
    said: list[_Said] = []
    for place, turn in enumerate(turns):
        role, text = turn.role, turn.text
        if role == "system" and (place or not keeps_first):
            role, text = "user", _reminder(text) if place else text
        if role == "assistant" and (not said or said[-1].role == "system"):
            said.append(_Said("user"))
        if not said or said[-1].role != role:
            said.append(_Said(role, turn.tokens))
        if text:
            said[-1].texts.append(text)
    return [each.turn for each in said]


@dataclass(frozen=True, slots=True)
class _Said:
    role: Role
    tokens: tuple[int, ...] = ()
    texts: list[str] = field(default_factory=list[str])

    @property
    def turn(self) -> Turn:
        return replace(Turn.of(self.role, "\n\n".join(self.texts)), tokens=self.tokens)


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"

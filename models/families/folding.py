"""System turns in families that have none, or none but the first."""

from collections.abc import Sequence

from models.conversation import Role, Turn


def folded(turns: Sequence[Turn], *, keeps_first: bool) -> list[Turn]:
    """Turns that begin with the user's and alternate; if `keeps_first`, after a first system turn.

    A system turn becomes the user's: the first as it is, later ones as a tagged reminder. So no
    turn changes what stands before it, and what was rendered once begins all later prompts. Before
    an assistant that speaks first, the user says nothing.
    """
    said: list[tuple[Role, list[str]]] = []
    for place, turn in enumerate(turns):
        role, text = turn.role, turn.text
        if role == "system" and (place or not keeps_first):
            role, text = "user", _reminder(text) if place else text
        if role == "assistant" and (not said or said[-1][0] == "system"):
            said.append(("user", []))
        if not said or said[-1][0] != role:
            said.append((role, []))
        if text:
            said[-1][1].append(text)
    return [Turn.of(role, "\n\n".join(texts)) for role, texts in said]


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"

"""What proposes the tokens that may come next: the text itself, or weights made for it."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.uint32]]


class Drafts(Protocol):
    """Tokens, uint32 [drafts]: an array of NumPy's, or one of MLX's, which may still be computed
    when it is given away. Who reads it waits for it."""

    def __len__(self) -> int: ...

    def tolist(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Offer:
    """Up to `most` drafts that `drafter` could make now, and what they would cost it.

    Those of one `kind` are alike. Each is right with `chance` if those before it are, so long as
    nothing was measured. They take `passes` through the drafter's weights, however many they are,
    and `passes_each` for each of them.
    """

    drafter: "Drafter"
    kind: str
    chance: float
    most: int
    passes: int = 0
    passes_each: int = 0


class Drafter:
    """Drafts for one run after the other.

    `tokens` are those of the run so far, prompt and answer, uint32 [tokens]: a view, never changed.
    """

    def begin(self, scope: str, tokens: Ids) -> None:
        """A run begins; the model has the state after these tokens from an earlier run. What is
        known of runs of another `scope` is of no use to it."""

    def follow(self, tokens: Ids) -> None:
        """The model has seen these, and nothing that comes after them counts."""

    def offer(self, tokens: Ids) -> Offer | None:
        """What could be drafted after these, the last of which the model has not seen."""
        raise NotImplementedError

    def draft(self, tokens: Ids, width: int) -> Drafts:
        """The drafts of the offer that was just made, `width` of them."""
        raise NotImplementedError

    def draft_ahead(self, drafts: Drafts, drawn: Any) -> None:
        """Begin with what `draft` is going to be asked for after the round under way, whose pass
        over its last token and `drafts`, uint32 [n], is queued. `drawn`, uint32 [n + 1], is what
        the model says in the places after them. The device may still be computing both."""

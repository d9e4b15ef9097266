"""The drafts of one run: where they come from, whether they pay, and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.speculation.policy import Policy, StepCosts
from models.speculation.prompt_lookup import PromptLookup

# As many as the widest pass that is cheap on any device.
_MOST_FORCED = 15


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come after the next one. `match` is how many of those before them stood
    before them elsewhere, too; 0 if a grammar forces them."""

    ids: tuple[int, ...]
    match: int = 0


class Speculation:
    """Told of every token of its run, and of how long each round took."""

    def __init__(self, prompt: Sequence[int], costs: StepCosts) -> None:
        self._lookup, self._policy = PromptLookup(prompt), Policy(costs)
        self._tokens = len(prompt)
        self._verified_rounds = self._drafted_tokens = self._accepted_tokens = 0

    def counts(self) -> dict[str, int]:
        """What `Stats` tells of it."""
        return {
            "verified_rounds": self._verified_rounds,
            "drafted_tokens": self._drafted_tokens,
            "accepted_tokens": self._accepted_tokens,
            "draft_pauses": self._policy.pauses,
        }

    @property
    def may_draft(self) -> bool:
        """Whether it is worth knowing the next token, to draft what comes after it."""
        return self._policy.drafts and self._lookup.find(1) is not None

    def draft(self, token: int, forced: Sequence[int], most: int) -> Draft | None:
        """Up to `most` tokens after `token`, the next one. A grammar expects `forced` to come, that
        token included."""
        if len(forced) > 1 and forced[0] == token:
            return Draft(tuple(forced[1 : 1 + min(most, _MOST_FORCED)]))
        if not self._policy.drafts:
            return None
        self._lookup.extend([token])
        found = self._lookup.find(most)
        width = self._policy.width(found.match) if found else 0
        return Draft(found.ids[:width], found.match) if found and width else None

    def went_on(self, ids: Sequence[int]) -> None:
        """The run has these tokens more."""
        self._tokens += len(ids)
        self._lookup.extend(ids[len(ids) - (self._tokens - len(self._lookup)) :])

    def stepped(self, seconds: float | None) -> None:
        """One token was generated without a draft; how long that took, if it can be told."""
        self._policy.stepped(seconds)

    def verified(self, draft: Draft, accepted: int, seconds: float) -> None:
        """So many of the draft were right; the pass took so long."""
        self._verified_rounds += 1
        self._drafted_tokens += len(draft.ids)
        self._accepted_tokens += accepted
        if draft.match:
            self._policy.verified(draft.match, len(draft.ids), accepted, seconds)

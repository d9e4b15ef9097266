"""The drafts of one run: where they come from, whether they pay, and what came of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.speculation.drafter import Drafter, Drafts, Ids, Offer
from models.speculation.policy import Policy
from models.speculation.prompt_lookup import PromptLookup
from models.speculation.step_costs import StepCosts
from models.speculation.text import Text

# As many as the widest pass that is cheap on any device.
_MOST_FORCED = 15


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come after the next one, of those that were made in so many seconds; of no
    offer if a grammar forces them."""

    ids: Drafts
    offer: Offer | None = None
    made: int = 0
    seconds: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the device may still be at it."""
        return not isinstance(self.ids, np.ndarray)


class Speculation:
    """Told of every token of its run, and of how long each round took.

    Drafts come from the text, or from a `drafter` that has weights, whichever promises more. The
    model has the state after `seen` tokens of the prompt from an earlier run of that `scope`. On a
    device beside the host, which `runs_ahead` of it, drafts are not waited for once it is known
    what their verification takes: otherwise what they themselves take could not be told. And the
    next ones are begun before it is known which of them are right.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        costs: StepCosts,
        drafter: Drafter | None = None,
        *,
        scope: str = "",
        seen: int = 0,
        runs_ahead: bool = False,
    ) -> None:
        self.runs_ahead = runs_ahead
        self._text, self._policy = Text(prompt), Policy(costs)
        self._drafter = drafter
        self._drafters = [PromptLookup(), *([] if drafter is None else [drafter])]
        self._verified_rounds = self._drafted_tokens = self._accepted_tokens = 0
        if drafter is not None:
            drafter.begin(scope, self._text.ids[:seen])

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
        """Whether it is worth knowing the next token, to draft what comes after it: if the device
        has to wait for the host, a step takes longer. What can be asked is whether something would
        be drafted in the place of that token."""
        return self._policy.drafts and self._chosen(self._text.ids) is not None

    def draft(
        self, token: int, most: int, forced: Sequence[int] = (), *, is_read: bool = False
    ) -> Draft | None:
        """Up to `most` tokens after `token`, the next one. A grammar expects `forced` to come. A
        draft that `is_read` before it is verified is not late."""
        certain = np.array(forced[: min(most, _MOST_FORCED)], np.uint32)
        if len(certain) and self._policy.forced_pay(len(certain)):
            return Draft(certain)
        if len(certain) or not self._policy.drafts:
            return None
        started, tokens = time.perf_counter(), self._text.before(token)
        chosen = self._chosen(tokens)
        if chosen is None:
            return None
        offer, width = chosen
        ids = offer.drafter.draft(tokens, min(width, most))
        if is_read or not self.runs_ahead or not self._policy.knows(len(ids)):
            ids = np.asarray(ids)
        return Draft(ids, offer, len(ids), time.perf_counter() - started)

    def verifying(self, draft: Draft, drawn: Any) -> None:
        """The pass over the draft is queued, with what is `drawn` in its places and after it. What
        has drafted now probably will again."""
        if draft.offer is not None:
            draft.offer.drafter.draft_ahead(draft.ids, drawn)

    def refused(self, draft: Draft) -> None:
        """A grammar allows none of the draft."""
        if draft.offer is not None:
            self._policy.refused(draft.offer, draft.made, draft.seconds)

    def prefilled(self, tokens: int) -> None:
        """The model has seen the first `tokens` of the prompt."""
        if self._drafter is not None:
            self._drafter.follow(self._text.ids[:tokens])

    def went_on(self, ids: Sequence[int]) -> None:
        """The run has these tokens more."""
        self._text.extend(ids)
        if self._drafter is not None:
            self._drafter.follow(self._text.ids)

    def stepped(self, seconds: float | None) -> None:
        """One token was generated without a draft; how long that took, if it can be told."""
        self._policy.stepped(seconds)

    def verified(self, draft: Draft, accepted: int, seconds: float) -> None:
        """So many of the draft were right; the pass took so long."""
        self._verified_rounds += 1
        self._drafted_tokens += len(draft.ids)
        self._accepted_tokens += accepted
        if draft.offer is None:
            self._policy.verified_forced(len(draft.ids), accepted, seconds)
            return
        drafted, drafting = len(draft.ids), draft.seconds
        if draft.is_late:
            seconds, drafting = self._policy.parted(drafted, drafting + seconds)
        refused = draft.made - drafted
        self._policy.verified(draft.offer, drafted, accepted, seconds, drafting, refused)

    def _chosen(self, tokens: Ids) -> tuple[Offer, int] | None:
        offers = [offer for each in self._drafters if (offer := each.offer(tokens)) is not None]
        return self._policy.choose(offers)

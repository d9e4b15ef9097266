"""Whether drafts pay: decided by what steps cost and how many drafts were accepted, as measured.

All of it is about speed; what is generated never depends on it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from models.speculation.drafter import Offer
from models.speculation.step_costs import FADING, SMOOTHING, StepCosts

_WIDTHS = (1, 2, 3, 5, 7, 11, 15)
_LEAST_GAIN = 1.05  # over serial steps, as estimated: below it noise would decide
_STAKE = 0.01  # of the answer so far: what drafts may put at risk, beyond what they have gained

# How many drafts have to tell otherwise before the chance that was offered counts for half, and
# what is left of earlier rounds with each round: of matches, which one part of a text has and
# another has not, and of drafters with weights, which are as good everywhere.
_PRIOR_WEIGHT, _STEADY_WEIGHT = 3.0, 8.0
_FORGETTING, _STEADY_FORGETTING = 0.9, 0.97

_WARM_UP_ROUNDS = 2
_MEASURED_ROUNDS = 8
_PROBES = 3
_LOW_ACCEPTANCE = 0.5
_LEAST_SHARE = 0.95  # of what serial steps would have done
_CERTAIN_SHARE = 1.25  # which no slowing down of steps since they were last measured makes up for
_PAUSE_TOKENS, _LONGEST_PAUSE = 32, 512
_TRUSTED_ROUNDS, _MOST_TRUSTED = 16, 128  # once serial steps have shown that drafts pay


@dataclass(slots=True)
class _Acceptance:
    chance: float  # that was offered
    rate: float
    weight: float
    forgetting: float

    def measured(self, tries: int, accepted: int) -> None:
        self.weight = self.forgetting * self.weight + tries
        self.rate += (accepted - tries * self.rate) / self.weight

    def fade(self) -> None:
        self.rate += FADING * (self.chance - self.rate)


class Policy:
    """How many drafts to verify in the next round of a run.

    It begins with serial steps, to know what one costs. When eight rounds after two of warm-up had
    few drafts accepted, three serial steps that can be timed show what one costs now; if the rounds
    brought less than 95 % of that speed, nothing is drafted for a while: 32 tokens, then twice as
    long each time; if they brought more, nothing is doubted for a while.

    An answer may be short, and is never to be much slower for its drafts. So what a round would
    lose if none of them were right, times how likely that is, has to be small beside the answer so
    far: the first rounds are narrow, until some drafts were right.
    """

    def __init__(self, costs: StepCosts) -> None:
        self.pauses = 0
        self._costs = costs
        self._serial_seconds = 0.0  # of one serial step; 0 while unknown
        self._probes = _WARM_UP_ROUNDS  # serial steps that are due, whatever may be drafted
        self._probed: list[float] = []
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=_MEASURED_ROUNDS)
        self._rounds = 0
        self._pause, self._paused = _PAUSE_TOKENS, 0
        self._trusted = _TRUSTED_ROUNDS
        self._rates: dict[str, _Acceptance] = {}  # by kind of offer
        self._tokens = 0
        self._gained = 0.0  # serial steps, by all rounds of the run: below 0, lost

    @property
    def drafts(self) -> bool:
        """Whether drafts are of any use now."""
        return not self._probes and not self._paused

    def choose(self, offers: Sequence[Offer]) -> tuple[Offer, int] | None:
        """The offer that gains most, and how many drafts of it to verify; None if none gains."""
        best, best_gain = None, _LEAST_GAIN
        bearable = max(0.0, self._gained + _STAKE * self._tokens)
        for offer in offers:
            rate = self._rate(offer).rate
            expected, chance, drafts = 1.0, 1.0, 0
            for width in (*(each for each in _WIDTHS if each < offer.most), offer.most):
                while drafts < width:
                    drafts, chance = drafts + 1, chance * rate
                    expected += chance
                cost = self._costs.of(width + 1) + self._costs.drafting * _passes(offer, width)
                if (1 - rate) * (cost - 1) > bearable:
                    continue
                if (gain := expected / cost) > best_gain:
                    best, best_gain = (offer, width), gain
        return best

    def stepped(self, seconds: float | None) -> None:
        """A serial step took so long, if that can be told."""
        self._tokens += 1
        self._paused = max(0, self._paused - 1)
        self._costs.fade()
        for each in self._rates.values():
            each.fade()
        if seconds is None:
            return
        before = self._serial_seconds or seconds
        self._serial_seconds = before + SMOOTHING * (seconds - before)
        if self._probes:
            self._probes -= 1
            self._probed.append(seconds)
            if not self._probes and len(self._probed) == _PROBES:
                self._judge(sorted(self._probed)[_PROBES // 2])

    def knows(self, drafts: int) -> bool:
        """Whether a pass over so many drafts was measured."""
        return self._costs.knows(drafts + 1)

    def parted(self, drafts: int, seconds: float) -> tuple[float, float]:
        """A round took so long with its drafting: how long the pass over so many drafts took, as
        far as is known, and how long drafting did."""
        verifying = min(seconds, self._costs.of(drafts + 1) * self._serial_seconds)
        return verifying, seconds - verifying

    def forced_pay(self, drafts: int) -> bool:
        """Whether to verify so many drafts that are as good as certain costs less than steps."""
        return self._costs.of(drafts + 1) < drafts + 1

    def verified_forced(self, drafted: int, accepted: int, seconds: float) -> None:
        """A round over so many of those took so long."""
        self._tokens += accepted + 1
        if self._serial_seconds:
            self._costs.measured(drafted + 1, seconds / self._serial_seconds)

    def refused(self, offer: Offer, made: int, drafting: float) -> None:
        """So many drafts took `drafting` seconds to make, and a grammar allows none of them."""
        self._gained -= self._drafted(offer, made, 0, drafting)

    def verified(
        self,
        offer: Offer,
        drafted: int,
        accepted: int,
        seconds: float,
        drafting: float = 0.0,
        refused: int = 0,
    ) -> None:
        """A round over so many drafts took so long, after they, and some more that a grammar
        `refused`, took `drafting` seconds to make."""
        cost = self._costs.measured(drafted + 1, seconds / self._serial_seconds)
        cost += self._drafted(offer, drafted + refused, accepted, drafting)
        self._tokens += accepted + 1
        self._gained += accepted + 1 - cost
        self._rounds += 1
        if self._rounds <= _WARM_UP_ROUNDS:
            return
        self._recent.append((drafted, accepted, seconds + drafting))
        if len(self._recent) == _MEASURED_ROUNDS and self._is_low():
            self._probes, self._probed = _PROBES, []

    def _drafted(self, offer: Offer, made: int, accepted: int, drafting: float) -> float:
        """So many drafts were made, of which the first ones were right. What that took, in
        steps."""
        tries = min(made, accepted + 1)  # those after the first wrong one were not tried
        self._rate(offer).measured(tries, accepted)
        self._costs.tried(offer, tries, accepted)
        passes = _passes(offer, made)
        if not passes:
            return 0.0
        self._costs.drafted(drafting / passes / self._serial_seconds)
        return self._costs.drafting * passes

    def _is_low(self) -> bool:
        drafted = sum(each for each, _, _ in self._recent)
        accepted = sum(each for _, each, _ in self._recent)
        return accepted < _LOW_ACCEPTANCE * drafted and self._share() < _CERTAIN_SHARE

    def _share(self) -> float:
        """Of the tokens that serial steps would have brought, what the recent rounds did."""
        tokens = sum(accepted + 1 for _, accepted, _ in self._recent)
        return tokens * self._serial_seconds / sum(each for _, _, each in self._recent)

    def _judge(self, serial_seconds: float) -> None:
        self._serial_seconds = serial_seconds
        share = self._share()
        self._recent.clear()
        if share < _LEAST_SHARE:
            self.pauses += 1
            self._paused = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._rounds = 0
            self._rates.clear()
        else:
            self._rounds = -self._trusted
            self._trusted = min(2 * self._trusted, _MOST_TRUSTED)

    def _rate(self, offer: Offer) -> _Acceptance:
        if offer.kind not in self._rates:
            chance, weight, forgetting = self._costs.chance_of(offer), _PRIOR_WEIGHT, _FORGETTING
            if _passes(offer, 1):
                weight, forgetting = _STEADY_WEIGHT, _STEADY_FORGETTING
            else:
                chance = (chance + offer.chance) / 2  # another text is another matter
            self._rates[offer.kind] = _Acceptance(offer.chance, chance, weight, forgetting)
        return self._rates[offer.kind]


def _passes(offer: Offer, width: int) -> int:
    return offer.passes + offer.passes_each * width

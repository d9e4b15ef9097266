"""What passes of one model cost on one device, and how often its drafts were right: as measured."""

from models.speculation.drafter import Offer

SMOOTHING = 0.3  # the share of the newest measurement
FADING = 1 / 256  # of all that was measured, with each serial step: drafts are tried again

# A pass reads the weights once, whatever the rows: so long as nothing is measured, this little is
# what one row more is taken to cost, in passes of one row. Wide passes are tried, and then known.
_ROW_COST = 0.05
# So is what a pass through a drafter's weights costs, so that it is tried, and then known.
_DRAFTING_COST = 0.1
_LEARNING = 1 / 32  # with each draft that was tried, of the chance in later runs
_SLOW_FADING = 1 / 2048  # of what passes cost, which seldom changes
_SURPRISE = 2.0  # a pass that takes more than so many times what was thought was disturbed


class StepCosts:
    """What a pass costs by its rows, in passes of one row, for one model on one device; what one
    costs its drafter with weights, if there is one; and how often drafts were right in its runs."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {1: 1.0}
        self._tried = set[int]()
        self.drafting = _DRAFTING_COST
        self._has_drafted = False
        self._chances: dict[str, float] = {}  # by kind of offer

    def of(self, rows: int) -> float:
        """As measured, or as far from the nearest width that was as rows are thought to cost."""
        nearest = min(self._known, key=lambda known: abs(known - rows))
        return self._known[nearest] + _ROW_COST * (rows - nearest)

    def measured(self, rows: int, cost: float) -> float:
        """Returns what is believed of it. The first pass of each width says nothing of later ones:
        kernels may have been compiled for it."""
        before = self._known.get(rows, _thought(rows))
        believed = min(cost, _SURPRISE * before)
        if rows in self._tried:
            weight = SMOOTHING if rows in self._known else 1.0
            self._known[rows] = before + weight * (believed - before)
        self._tried.add(rows)
        return believed

    def knows(self, rows: int) -> bool:
        return rows in self._known

    def drafted(self, cost: float) -> None:
        """Of one pass through the drafter's weights. The first does not count, either."""
        if self._has_drafted:
            self.drafting += SMOOTHING * (cost - self.drafting)
        self._has_drafted = True

    def chance_of(self, offer: Offer) -> float:
        """Of a draft of such an offer, if those before it are right, at the beginning of a run."""
        return self._chances.get(offer.kind, offer.chance)

    def tried(self, offer: Offer, tries: int, accepted: int) -> None:
        before = self.chance_of(offer)
        self._chances[offer.kind] = before + _LEARNING * (accepted - tries * before)

    def fade(self) -> None:
        """A serial step was made: in time, what seemed to cost much is tried again."""
        self.drafting += FADING * (_DRAFTING_COST - self.drafting)
        for rows, cost in self._known.items():
            self._known[rows] = cost + _SLOW_FADING * (_thought(rows) - cost)


def _thought(rows: int) -> float:
    """What a pass is taken to cost while nothing is measured."""
    return 1 + _ROW_COST * (rows - 1)

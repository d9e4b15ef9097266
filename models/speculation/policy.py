"""Whether drafts pay: decided by what steps cost and how many drafts were accepted, as measured.

All of it is about speed; what is generated never depends on it.
"""

from collections import deque
from dataclasses import dataclass

# A pass reads the weights once, whatever the rows: so long as nothing is measured, this little is
# what one row more is taken to cost, in passes of one row. Wide passes are tried, and then known.
_ROW_COST = 0.05
_WIDTHS = (1, 2, 3, 5, 7, 11, 15)
_LEAST_GAIN = 1.05  # over serial steps, as estimated: below it noise would decide
_SMOOTHING = 0.3  # the share of the newest measurement

# How often a draft is accepted if those before it were: what is taken for granted, by the length
# of the match that it comes from, and how many measurements that outweighs.
_PRIORS = ((16, 0.9), (6, 0.8), (3, 0.6), (0, 0.4))
_PRIOR_WEIGHT = 3.0
_FORGETTING = 0.9  # of earlier rounds, with each round

_WARM_UP_ROUNDS = 2
_MEASURED_ROUNDS = 8
_PROBES = 3
_LOW_ACCEPTANCE = 0.5
_LEAST_SHARE = 0.95  # of what serial steps would have done
_PAUSE_TOKENS, _LONGEST_PAUSE = 32, 512


class StepCosts:
    """What a pass costs by its rows, in passes of one row, for one model on one device."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {1: 1.0}
        self._tried = set[int]()

    def of(self, rows: int) -> float:
        """As measured, or as far from the nearest width that was as rows are thought to cost."""
        nearest = min(self._known, key=lambda known: abs(known - rows))
        return self._known[nearest] + _ROW_COST * (rows - nearest)

    def measured(self, rows: int, cost: float) -> None:
        """The first pass of each width does not count: kernels may have been compiled for it."""
        if rows not in self._tried:
            self._tried.add(rows)
            return
        before = self._known.get(rows, cost)
        self._known[rows] = before + _SMOOTHING * (cost - before)


@dataclass(slots=True)
class _Acceptance:
    rate: float
    weight: float = _PRIOR_WEIGHT

    def measured(self, drafted: int, accepted: int) -> None:
        tries = min(drafted, accepted + 1)  # those after the first wrong one were not tried
        self.weight = _FORGETTING * self.weight + tries
        self.rate += (accepted - tries * self.rate) / self.weight


class Policy:
    """How many drafts to verify in the next round of a run.

    It begins with serial steps, to know what one costs. When eight rounds after two of warm-up had
    few drafts accepted, three serial steps, real ones, show what one costs now; if the rounds
    brought less than 95 % of that speed, nothing is drafted for a while: 32 tokens, then twice as
    long each time.
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
        self._rates = _priors()

    @property
    def drafts(self) -> bool:
        """Whether drafts are of any use now."""
        return not self._probes and not self._paused

    def width(self, match: int) -> int:
        """How many drafts to verify after a match of so many tokens; 0 for none."""
        rate = self._rates[_kind(match)].rate
        best, best_gain = 0, _LEAST_GAIN
        expected, chance, drafts = 1.0, 1.0, 0
        for width in _WIDTHS:
            while drafts < width:
                drafts, chance = drafts + 1, chance * rate
                expected += chance
            if (gain := expected / self._costs.of(width + 1)) > best_gain:
                best, best_gain = width, gain
        return best

    def stepped(self, seconds: float | None) -> None:
        """A serial step took so long, if that can be told."""
        self._paused = max(0, self._paused - 1)
        if seconds is None:
            return
        before = self._serial_seconds or seconds
        self._serial_seconds = before + _SMOOTHING * (seconds - before)
        if self._probes:
            self._probes -= 1
            self._probed.append(seconds)
            if not self._probes and len(self._probed) == _PROBES:
                self._judge(sorted(self._probed)[_PROBES // 2])

    def verified(self, match: int, drafted: int, accepted: int, seconds: float) -> None:
        """A round over so many drafts took so long."""
        self._rates[_kind(match)].measured(drafted, accepted)
        self._costs.measured(drafted + 1, seconds / self._serial_seconds)
        self._rounds += 1
        if self._rounds <= _WARM_UP_ROUNDS:
            return
        self._recent.append((drafted, accepted, seconds))
        if len(self._recent) == _MEASURED_ROUNDS and self._is_low():
            self._probes, self._probed = _PROBES, []

    def _is_low(self) -> bool:
        drafted = sum(each for each, _, _ in self._recent)
        return sum(each for _, each, _ in self._recent) < _LOW_ACCEPTANCE * drafted

    def _judge(self, serial_seconds: float) -> None:
        self._serial_seconds = serial_seconds
        tokens = sum(accepted + 1 for _, accepted, _ in self._recent)
        seconds = sum(each for _, _, each in self._recent)
        self._recent.clear()
        if tokens * serial_seconds < _LEAST_SHARE * seconds:
            self.pauses += 1
            self._paused = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._rounds, self._rates = 0, _priors()


def _priors() -> dict[int, _Acceptance]:
    return {least: _Acceptance(rate) for least, rate in _PRIORS}


def _kind(match: int) -> int:
    return next(least for least, _ in _PRIORS if match >= least)

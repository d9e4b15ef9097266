"""How far a model's scores are from those of another one, over the same windows."""

from dataclasses import dataclass

import numpy as np

from tools.perplexity.scoring import Scores

LIMIT = 1.001  # of the upper bound of the ratio: frozen, so that no candidate chooses its own
_DRAWS = 10_000
_INTERVAL = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is the candidate's perplexity over the reference's, between `low` and `high` in 95 %
    of the draws; `agreement` is the share of positions with the same likeliest token."""

    ratio: float
    low: float
    high: float
    agreement: float

    @property
    def passes(self) -> bool:
        return self.high <= LIMIT


def compare(reference: Scores, candidate: Scores) -> Comparison:
    """Windows are drawn with replacement (Efron's bootstrap), always the same for both models:
    what makes a passage hard for the one makes it hard for the other, and cancels out."""
    apart = (candidate.losses.astype(np.float64) - reference.losses).mean(axis=1)
    drawn = np.random.default_rng(0).integers(len(apart), size=(_DRAWS, len(apart)))
    low, high = np.percentile(apart[drawn].mean(axis=1), _INTERVAL)
    return Comparison(
        ratio=float(np.exp(apart.mean())),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        agreement=float((candidate.choices == reference.choices).mean()),
    )

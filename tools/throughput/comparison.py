"""What the attempts come to, against a bar that is frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tools.throughput.attempts import Attempt, Block

BAR = 1.05
"""What a candidate must have beside the reference, before it and after it, in every workload."""

BLOCKS: tuple[Block, ...] = ("R1", "C", "R2")
Verdict = Literal["gain", "no gain", "not measured"]


@dataclass(frozen=True)
class Comparison:
    """One workload. Medians are tokens per second of the samples that were kept; `ratios` are
    there where all blocks have some. `why` says why there is no verdict."""

    medians: Mapping[Block, float]
    kept: Mapping[Block, int]
    why: str | None

    @property
    def ratios(self) -> dict[str, float]:
        """The candidate's gain over both blocks, and how far the reference drifted."""
        if len(self.medians) < len(BLOCKS):
            return {}
        before, candidate, after = (self.medians[block] for block in BLOCKS)
        return {"C/R1": candidate / before, "C/R2": candidate / after, "R2/R1": after / before}

    @property
    def verdict(self) -> Verdict:
        """A gain is one over both blocks of the reference."""
        if self.why:
            return "not measured"
        return "gain" if min(self.ratios["C/R1"], self.ratios["C/R2"]) >= BAR else "no gain"


def compare(attempts: Sequence[Attempt], runs: int) -> Comparison:
    """All attempts at one workload, of which each block should have kept `runs`."""
    rates: dict[Block, list[float]] = {block: [] for block in BLOCKS}
    for each in attempts:
        if each.verdict == "kept":
            rates[each.place.block].append(each.tokens_per_second)
    kept = {block: len(found) for block, found in rates.items()}
    return Comparison(
        medians={block: median(found) for block, found in rates.items() if found},
        kept=kept,
        why=_fault(attempts, kept, runs),
    )


def overall(comparisons: Sequence[Comparison]) -> Verdict:
    """A gain in each is one; without a verdict in each there is none."""
    found = {each.verdict for each in comparisons}
    if "not measured" in found:
        return "not measured"
    return "gain" if found == {"gain"} else "no gain"


def _fault(attempts: Sequence[Attempt], kept: Mapping[Block, int], runs: int) -> str | None:
    for each in attempts:
        if each.verdict == "refused":
            return f"skipped, since the {each.place.server} refuses it: {each.why}"
        if each.verdict == "failed":
            return f"the {each.place.server} failed in {each.place.block}: {each.why}"
    few = [f"{count} of {runs} in {block}" for block, count in kept.items() if count < runs]
    if not few:
        return None
    disturbed = [each.why for each in attempts if each.verdict == "excluded"]
    return f"too few samples were kept: {', '.join(few)}; {(disturbed or ['not asked'])[-1]}"

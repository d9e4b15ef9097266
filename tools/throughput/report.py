"""A comparison as JSON and as a Markdown page."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from tools.qualification.sdk import anthropic
from tools.qualification.table import listing, markdown, table
from tools.throughput.attempts import Attempt
from tools.throughput.comparison import BAR, BLOCKS, Comparison, Verdict, compare, overall
from tools.throughput.rounds import TRIES, Rounds
from tools.throughput.watching import LIMITS
from tools.throughput.workloads import WORKLOADS, Workload

_HEADING = (
    *("workload", "measured", "reference before (R1)", "candidate (C)", "reference after (R2)"),
    *("C/R1", "C/R2", "R2/R1", "kept", "not counted", "verdict"),
)
_LOST = ("excluded", "refused", "failed")
_METHOD = (
    "Medians of the kept samples. Output tokens by the time from the request to the end of the "
    "answer, input tokens by that to its first content, both as the server's usage counts them. "
    f"A gain is at least {BAR} in C/R1 and C/R2 of every workload. What other processes, memory "
    "and sensors showed meanwhile decides alone whether a sample is kept; what others do on a "
    "GPU, and other requests to these servers, are not seen."
)


@dataclass(frozen=True)
class Report:
    """All that was asked, and how long it took."""

    rounds: Rounds
    workloads: Sequence[Workload]
    runs: int
    began: str
    seconds: float

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """Of each workload that was to be measured."""
        return {each.name: compare(self._made(each.name), self.runs) for each in self.workloads}

    @property
    def verdict(self) -> Verdict:
        """Of these workloads."""
        return overall(list(self.comparisons.values()))

    def as_json(self) -> dict[str, Any]:
        """Every attempt is there, also those that do not count."""
        return {
            "tool": "compare-throughput",
            "format": 1,
            **self._facts(),
            "openings": self.rounds.run,
            "bar": BAR,
            "limits": {**asdict(LIMITS), "tries": TRIES},
            "verdict": self.verdict,
            "server_is_gone": self.rounds.gone,
            "comparisons": {
                name: {**asdict(each), "ratios": each.ratios, "verdict": each.verdict}
                for name, each in self.comparisons.items()
            },
            "attempts": [asdict(each) for each in self.rounds.attempts],
        }

    def as_page(self) -> str:
        """What was compared, how, and the verdict; single attempts are in the JSON alone."""
        sections = ("# Throughput of two servers", listing(self._facts()), self.summary(), _METHOD)
        return "\n\n".join(sections) + "\n"

    def summary(self) -> str:
        """The table, why anything was not measured, and the verdict."""
        gone = self.rounds.gone
        whys = [f"The {gone} was gone before the end."] if gone else []
        whys += [f"{name}: {each.why}" for name, each in self.comparisons.items() if each.why]
        rows = map(self._row, self.workloads)
        return "\n\n".join((table(_HEADING, rows), *map(markdown, whys), self._sentence()))

    def _made(self, workload: str) -> list[Attempt]:
        return [each for each in self.rounds.attempts if each.place.workload == workload]

    def _sentence(self) -> str:
        measured = ", ".join(each.name for each in self.workloads)
        left = [name for name in WORKLOADS if name not in self.comparisons]
        alone = f" alone; not asked: {', '.join(left)}" if left else ""
        return f"{self.verdict}, of {measured}{alone}"

    def _row(self, workload: Workload) -> tuple[str, ...]:
        found = self.comparisons[workload.name]
        return (
            workload.name,
            f"{workload.counts} tokens/s",
            *(_figure(found.medians.get(block)) for block in BLOCKS),
            *(_figure(found.ratios.get(name)) for name in ("C/R1", "C/R2", "R2/R1")),
            " + ".join(str(found.kept[block]) for block in BLOCKS),
            str(sum(each.verdict in _LOST for each in self._made(workload.name))),
            found.verdict,
        )

    def _facts(self) -> dict[str, Any]:
        servers = self.rounds.servers
        return {
            **{role: f"{each.model} at {each.url}" for role, each in servers.items()},
            "sdk": f"anthropic {anthropic.__version__}",
            "system": platform.platform(),
            "cores": psutil.cpu_count(),
            "began": self.began,
            "seconds": self.seconds,
            "runs": self.runs,
            **{f"SHA-256 of {each.name}": each.sha256 for each in self.workloads},
        }


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"

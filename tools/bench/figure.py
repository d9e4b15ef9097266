"""A measured figure, beside the bar it must reach."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """The most, or the least, that a figure may be."""

    kind: Literal["<=", ">=", "<"]
    limit: float

    def passes(self, value: float) -> bool:
        match self.kind:
            case "<=":
                return value <= self.limit
            case ">=":
                return value >= self.limit
            case "<":
                return value < self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `how` says in a few words how it was measured. Without a bar it is
    there to understand the others by."""

    name: str
    value: float
    unit: str
    how: str
    bar: Bar | None = None

    @property
    def passed(self) -> bool | None:
        return self.bar and self.bar.passes(self.value)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def centre(values: Sequence[float]) -> str:
    """The median and what lies around it, for a figure's `how`."""
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1]


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table that is aligned for reading as it stands."""
    rows = [("what", "value", "bar", "verdict", "how measured"), *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join("| " + " | ".join(map(str.ljust, row, widths)).rstrip() + " |" for row in rows)


def _row(figure: Figure) -> tuple[str, ...]:
    bar, verdict = "", ""
    if figure.bar is not None:
        bar = f"{figure.bar.kind} {figure.bar.limit:g}"
        verdict = "pass" if figure.passed else "FAIL"
    return figure.name, f"{figure.value:.3g} {figure.unit}".strip(), bar, verdict, figure.how

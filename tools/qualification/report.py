"""What a qualification found, as JSON and as a Markdown page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tools.qualification.check import Result
from tools.qualification.sdk import anthropic
from tools.qualification.server import Server
from tools.qualification.table import cell, listing, markdown, printable, table

AreaVerdict = Literal["qualified", "failed", "not qualified"]


@dataclass(frozen=True)
class Report:
    """All that was checked. `gone` says that the server was no longer there at the end."""

    server: Server
    began: str
    seconds: float
    results: Sequence[Result]
    gone: bool

    @property
    def areas(self) -> dict[str, AreaVerdict]:
        """What each area comes to: it qualifies where every check of it passed."""
        verdicts: dict[str, set[str]] = {}
        for result in self.results:
            verdicts.setdefault(result.area, set()).add(result.verdict)
        return {area: _verdict(found) for area, found in verdicts.items()}

    @property
    def good(self) -> bool:
        """Nothing failed, all was run, and something was seen to work."""
        found = {result.verdict for result in self.results}
        return "passed" in found and not found & {"failed", "not run"}

    def as_json(self) -> dict[str, Any]:
        """What the model made of questions stands apart from what the server did."""
        checks: list[dict[str, Any]] = []
        outcomes: list[dict[str, Any]] = []
        for result in self.results:
            check = asdict(result)
            for each in check.pop("outcomes"):
                outcomes.append({"area": result.area, "name": result.name, **each})
            checks.append(check)
        return {
            "tool": "qualify-messages",
            "format": 1,
            **self._facts(),
            "declared": self.server.declared,
            "server_is_gone": self.gone,
            "areas": self.areas,
            "checks": checks,
            "model_outcomes": outcomes,
        }

    def as_page(self) -> str:
        """Areas, checks, what the model said, and the evidence of what failed."""
        sections = [f"# Qualification of {markdown(self.server.model)}\n\n{listing(self._facts())}"]
        if self.gone:
            sections.append("**The server was gone at the end.** What was left is not run.")
        sections += [
            f"## Areas\n\n{table(('area', 'verdict', 'checks'), self._areas())}",
            f"## Checks\n\n{table(('area', 'check', 'verdict', 'seconds', 'why'), self._rows())}",
        ]
        said = [
            (each.area, each.name, one.expected, one.said, "yes" if one.met else "no")
            for each in self.results
            for one in each.outcomes
        ]
        if said:
            heading = ("area", "check", "hoped for", "said", "met")
            about = "What the model made of questions. No verdict above depends on it."
            sections.append(f"## The model\n\n{about}\n\n{table(heading, said)}")
        sections += [_evidence(each) for each in self.results if each.verdict == "failed"]
        return "\n\n".join(sections) + "\n"

    def summary(self) -> str:
        """A line for each area, and each check that did not pass."""
        lines = [f"{area:12}  {verdict:13}  {passed}" for area, verdict, passed in self._areas()]
        for each in self.results:
            if each.verdict != "passed":
                lines.append(f"{each.verdict}: {each.area}, {each.name}: {each.why}")
        return "\n".join(map(printable, lines))

    def _areas(self) -> list[tuple[str, str, str]]:
        """Each area's name, its verdict, and how many of its checks passed."""
        rows: list[tuple[str, str, str]] = []
        for area, verdict in self.areas.items():
            found = [each.verdict for each in self.results if each.area == area]
            rows.append((area, verdict, f"{found.count('passed')} of {len(found)} passed"))
        return rows

    def _facts(self) -> dict[str, Any]:
        facts = {
            "server": self.server.url,
            "model": self.server.model,
            "sdk": f"anthropic {anthropic.__version__}",
            "began": self.began,
            "seconds": self.seconds,
            "max_tokens": self.server.max_tokens,
            "effort": self.server.effort,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (each.area, each.name, each.verdict, f"{each.seconds:.1f}", each.why or "")
            for each in self.results
        ]


def _verdict(found: set[str]) -> AreaVerdict:
    if "failed" in found:
        return "failed"
    return "qualified" if found == {"passed"} else "not qualified"


def _evidence(result: Result) -> str:
    heading = ("sent", "came", "seconds")
    rows = [(cell(each.sent), cell(each.came), f"{each.seconds:.2f}") for each in result.exchanges]
    why = markdown(result.why or "")
    return f"## Evidence: {result.area}, {result.name}\n\n{why}\n\n{table(heading, rows)}"

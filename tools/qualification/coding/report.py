"""What coding sessions have come to, as JSON, as a Markdown page and in a few lines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.qualification.coding.client import Client, Limits
from tools.qualification.coding.outcomes import Outcome
from tools.qualification.coding.session import Session
from tools.qualification.coding.task import Task
from tools.qualification.coding.testing import Tested
from tools.qualification.coding.transport import Transport
from tools.qualification.server import Server
from tools.qualification.table import cell, listing, markdown, printable, table


@dataclass(frozen=True)
class Report:
    """All sessions. `gone` says that the server was no longer there at the end."""

    server: Server
    client: Client
    limits: Limits
    task: Task
    baseline: Mapping[str, Tested]
    began: str
    seconds: float
    sessions: Sequence[Session]
    gone: bool

    @property
    def passed(self) -> bool:
        """Every session has."""
        return all(each.verdict == "passed" for each in self.sessions)

    def as_json(self) -> dict[str, Any]:
        """Outcomes, which are the model's, stand apart from how the requests went."""
        return {
            "tool": "qualify-coding",
            "format": 1,
            **self._facts(),
            "verdict": self._verdict,
            "server_is_gone": self.gone,
            "fixture": dict(self.task.digests),
            "baseline": {name: each.verdict for name, each in self.baseline.items()},
            "sessions": [_session(each) for each in self.sessions],
        }

    def as_page(self) -> str:
        """The same for people, without the digests."""
        name = markdown(self.server.model)
        sections = [f"# Coding sessions with {name}: {self._verdict}", listing(self._facts())]
        if self.gone:
            sections.append("**The server was gone at the end.** What was left is not run.")
        runs = [f"run {number}" for number in range(1, len(self.sessions) + 1)]
        sections.append(f"## Outcomes\n\n{table(('outcome', *runs), self._outcomes())}")
        about = "What the client tells of its requests. No outcome depends on it."
        rows = self._transport()
        sections.append(f"## Transport\n\n{about}\n\n{table(('transport', *runs), rows)}")
        return "\n\n".join(sections) + "\n"

    def summary(self) -> str:
        """A line for each session, and for each outcome that failed."""
        lines: list[str] = []
        for number, each in enumerate(self.sessions, 1):
            went = f"; {_brief(each.transport)}" if each.transport else ": the server is gone"
            lines.append(f"run {number}: {each.verdict}{went}")
            lines += [f"  {one.name}: {one.why}" for one in each.outcomes if one.why]
            lines += [f"  added: {name}" for name in each.added]
        lines += ["the server was gone at the end"] if self.gone else []
        return "\n".join(map(printable, lines))

    @property
    def _verdict(self) -> str:
        return "passed" if self.passed else "failed"

    def _facts(self) -> dict[str, Any]:
        return {
            "server": self.server.url,
            "model": self.server.model,
            "client": f"Claude Code {self.client.version}",
            "small_prompt": self.limits.small_prompt,
            "began": self.began,
            "seconds": self.seconds,
            "timeout_s": self.limits.seconds,
            "max_turns": self.limits.turns,
            "max_tokens": self.server.max_tokens,
            **({"effort": self.server.effort} if self.server.effort else {}),
        }

    def _outcomes(self) -> list[tuple[str, ...]]:
        """The verdicts, then a row for each outcome."""
        ran = [each.outcomes for each in self.sessions if each.outcomes]
        rows = [("all", *(each.verdict for each in self.sessions))]
        for place, outcome in enumerate(ran[0]):
            found = [each.outcomes[place] if each.outcomes else None for each in self.sessions]
            rows.append((outcome.name, *(_shown(each) for each in found)))
        rows.append(("files added", *(", ".join(each.added) for each in self.sessions)))
        return rows

    def _transport(self) -> list[tuple[str, ...]]:
        told = [_told(each) for each in self.sessions]
        return [(name, *(each.get(name, "") for each in told)) for name in told[0]]


def _session(session: Session) -> dict[str, Any]:
    return {
        "verdict": session.verdict,
        "seconds": session.seconds,
        "outcomes": [
            {"name": each.name, "passed": each.why is None, "why": each.why}
            for each in session.outcomes
        ],
        "files_added": list(session.added),
        "transport": session.transport and asdict(session.transport),
    }


def _told(session: Session) -> dict[str, str]:
    """For the page: without what is told of every request."""
    if session.transport is None:
        return {}
    told = asdict(session.transport) | {"seconds": session.seconds}
    told |= {"retries": len(told["retries"])}
    del told["usages"]
    return {name: it if isinstance(it, str) else cell(it) for name, it in told.items()}


def _shown(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    return f"fail: {outcome.why}" if outcome.why else "pass"


def _brief(transport: Transport) -> str:
    return f"transport {transport.verdict}, {transport.answers} answers"

"""What a client printed of a session (`--output-format stream-json`): events, one a line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Step:
    """A call of a tool, and what the tool said. Places are those of events; where no result came,
    `answered_at` and `failed` are None."""

    tool: str
    input: dict[str, Any]
    called_at: int
    answered_at: int | None = None
    failed: bool | None = None
    said: str = ""

    @property
    def command(self) -> str:
        """That of a call of Bash; empty for others."""
        return str(self.input.get("command", "")) if self.tool == "Bash" else ""


@dataclass(frozen=True)
class Transcript:
    events: list[dict[str, Any]]

    @classmethod
    def read(cls, printed: str) -> "Transcript":
        """What is no event is passed over: a client that was killed leaves half a line."""
        return cls(list(_events(printed)))

    @property
    def result(self) -> dict[str, Any]:
        """The client's last word on the session; empty where it had none."""
        return next((each for each in self.events[::-1] if each.get("type") == "result"), {})

    @property
    def steps(self) -> list[Step]:
        """In the order of the calls."""
        steps: dict[str, Step] = {}
        for place in range(len(self.events)):
            for block in _content(self.events[place]):
                match block:
                    case {"type": "tool_use", "id": str(key), "name": name, "input": dict(given)}:
                        steps[key] = Step(str(name), given, place)
                    case {"type": "tool_result", "tool_use_id": str(key)} if key in steps:
                        failed, said = bool(block.get("is_error")), _text(block.get("content"))
                        steps[key] = replace(
                            steps[key], answered_at=place, failed=failed, said=said
                        )
        return list(steps.values())

    def content(self, role: str) -> list[dict[str, Any]]:
        """All blocks of that role's messages."""
        of_role = (each for each in self.events if each.get("type") == role)
        return [block for each in of_role for block in _content(each)]


def _events(printed: str) -> Iterator[dict[str, Any]]:
    for line in printed.split("\n"):  # JSON may hold what `splitlines` takes for other ends
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _content(event: dict[str, Any]) -> list[dict[str, Any]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return [each for each in blocks if isinstance(each, dict)]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(each.get("text", "")) for each in content or () if isinstance(each, dict))

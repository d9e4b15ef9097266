"""What is asked: requests that are frozen, but for the first line of each."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_OPENING = "{opening}"


@dataclass(frozen=True)
class Workload:
    """`request` has the arguments of the SDK, without the model. `counts` says what throughput is
    made of: tokens of the answer by all the time until it has ended, or those of the prompt by
    the time until something of the answer is there."""

    name: str
    counts: Literal["output", "input"]
    request: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """The digest of all that decides what is asked and counted."""
        return hashlib.sha256(json.dumps([self.counts, self.request]).encode()).hexdigest()

    def opened(self, opening: str) -> dict[str, Any]:
        """The request that begins with this text."""
        return json.loads(json.dumps(self.request).replace(_OPENING, opening))


def _workload(
    name: str,
    max_tokens: int,
    text: str,
    counts: Literal["output", "input"] = "output",
    **more: Any,
) -> Workload:
    turn = {"role": "user", "content": f"{_OPENING}\n\n{text}"}
    greedy = {"extra_body": {"temperature": 0}}  # which the SDK itself no longer takes
    return Workload(name, counts, {"max_tokens": max_tokens, "messages": [turn], **greedy, **more})


_RECORDS = "\n".join(
    f"Entry {day}: the harbour master counted {day * 37 % 89 + 10} crates of salt and "
    f"{day * 53 % 79 + 20} barrels of oil, and the wind was from the north."
    for day in range(1, 49)
)
_FILE = '''\
```python
"""Bills of a small shop."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    name: str
    price: int
    count: int


def total(lines: list[Line]) -> int:
    """The sum of all lines, in cents."""
    return sum(line.price * line.count for line in lines)


def bill(lines: list[Line]) -> str:
    """A line for each thing that was bought, and the sum."""
    rows = [f"{line.count} x {line.name}: {line.price * line.count}" for line in lines]
    rows.append(f"to pay: {total(lines)}")
    return "\\n".join(rows)


def dearest(lines: list[Line]) -> Line:
    """The thing with the highest price."""
    return max(lines, key=lambda line: line.price)
```'''
_PROPERTIES = {
    "place_of_observation": {"enum": ["mountain", "harbour", "village", "forest"]},
    "weather_conditions": {"enum": ["sunny", "cloudy", "rainy", "windy"]},
    "number_of_visitors": {"type": "integer", "minimum": 0, "maximum": 999},
    "needs_attention": {"type": "boolean"},
}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": list(_PROPERTIES)}
_TOOL = {
    "name": "file_report",
    # At the very beginning of a prompt most model families have the tools.
    "description": f"{_OPENING}: files a report about a place.",
    "input_schema": {**_SCHEMA, "additionalProperties": False},
}
_FROZEN = (
    _workload("chat", 96, "Tell a long story about a lighthouse keeper and the sea, in detail."),
    _workload(
        "long-prompt",
        8,
        f"{_RECORDS}\n\nHow many crates were there in entry 17? Say the number.",
        counts="input",
    ),
    _workload(
        "rewrite",
        256,
        f"{_FILE}\n\nWrite this whole file again with `total` renamed to `amount`, nothing else.",
    ),
    _workload(
        "tool-call",
        160,
        "It was windy in the harbour today, 214 visitors came, a pier is broken. File a report.",
        tools=[_TOOL],
        tool_choice={"type": "tool", "name": _TOOL["name"]},
    ),
)
WORKLOADS = {each.name: each for each in _FROZEN}

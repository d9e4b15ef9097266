"""What stands in thinking from a call's opener on, until it is known what it is."""

from collections.abc import Sequence

from models.conversation import Tool
from models.parsing.events import CallArguments, CallEnd, CallStart, Event
from models.parsing.syntax import Syntax


class Aside:
    """Models call while they still think, and think about how calls are written. So it is held: if
    the answer ends there, and it is calls and nothing else, it is these, and else what was thought.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[bool, str]] = []  # whether it is a marker, and its text

    def __bool__(self) -> bool:
        return bool(self._parts)

    def text(self, text: str) -> None:
        self._parts.append((False, text))

    def marker(self, marker: str) -> None:
        self._parts.append((True, marker))

    def taken(self) -> str:
        """What was held, and is so no longer."""
        text = "".join(text for _, text in self._parts)
        self._parts.clear()
        return text

    def calls(self, syntax: Syntax, tools: Sequence[Tool]) -> list[Event]:
        """The valid calls of the tools that it is, read by `syntax` as a whole answer of calls that
        are held; nothing if it is not just that."""
        events: list[Event] = []
        for is_marker, text in self._parts:
            events += syntax.marker(text) if is_marker else syntax.text(text)
        events += syntax.end(cut=False)
        names = {each.name for each in tools}
        is_just_calls = all(
            each.name in names
            if isinstance(each, CallStart)
            else isinstance(each, CallArguments | CallEnd)
            for each in events
        )
        return events if is_just_calls else []

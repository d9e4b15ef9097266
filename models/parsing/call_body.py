"""What stands between the opener of a call and its close, read while it is written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from models.conversation import Tool
from models.parsing.calls import CallWriter, tool_name
from models.parsing.events import Event


class NotACall(Exception):
    """What was read is no call, or not a whole one."""


class CallBody(ABC):
    """Reads one or more calls, cut anywhere, and writes each as soon as it is complete, or with a
    writer that streams, while it grows.

    Whatever it raises NotACall for, `unread` is what it has not made a call of; `name` is that of
    the call that has begun, if one has. Where an answer ends within the `close`, what stands of it
    is no text.
    """

    def __init__(self, tools: Sequence[Tool], writer: CallWriter, close: str = "") -> None:
        self.name: str | None = None
        self.calls = 0  # that are complete
        self._tools = tools
        self._writer = writer
        self._wrapper_end = close
        self._unread: list[str] = []

    @property
    def unread(self) -> str:
        return "".join(self._unread)

    @property
    @abstractmethod
    def closable(self) -> bool:
        """Whether the close may stand here; where it may not, its characters are text."""

    @abstractmethod
    def text(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def end(self, *, closed: bool) -> Iterator[Event]:
        """The close is there, or else the model has ended its answer without it."""

    def _begin(self, written: str) -> Iterator[Event]:
        self.name = tool_name(written, self._tools)
        if self.name is None:
            raise NotACall("no tool can have its name")
        return self._writer.start(self.name)

    def _may_be_close(self, text: str) -> bool:
        """Whether the close begins with it; white space around it says nothing."""
        return self._wrapper_end.startswith(text.strip())

    def _ended(self, rest: str = "") -> None:
        """A call is complete; `rest` stands after it in what was read."""
        self.name = None
        self.calls += 1
        self._unread[:] = [rest]

"""Which part of a text is quoted code, as Markdown has it: markers there are examples."""

import re

# As long as a line is no longer than this, it may turn out to be a fence.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)$")


class CodeSpans:
    """Fed text in pieces, it knows whether the text so far ends inside of code.

    Code is what stands after an opening fence (a line that begins with three or more backticks or
    tildes) until its closing one, and after a run of backticks until the next run as long, on the
    same line.
    """

    def __init__(self) -> None:
        self._fence = ""  # that is open
        self._line: list[str] = []  # so far, in pieces

    def feed(self, text: str) -> None:
        if "\n" not in text:
            self._line.append(text)
            return
        first, *others = text.split("\n")
        self._line.append(first)
        for part in others:
            self._end_line()
            self._line = [part]

    @property
    def inside(self) -> bool:
        # The line after which a call is written may be a fence without its end of line yet.
        opened = self._fence_of_line()
        if self._fence:
            return not self._closes(opened)
        if opened is not None:
            return True
        return _in_inline_code("".join(self._line))

    def _end_line(self) -> None:
        mark = self._fence_of_line()
        if not self._fence:
            self._fence = mark[0] if mark else ""
        elif self._closes(mark):
            self._fence = ""

    def _fence_of_line(self) -> tuple[str, str] | None:
        """The marks that this line begins with, and what stands after them."""
        found = _FENCE.match("".join(self._line))
        return (found[1], found[2]) if found else None

    def _closes(self, mark: tuple[str, str] | None) -> bool:
        return mark is not None and mark[0].startswith(self._fence) and not mark[1].strip()


def _in_inline_code(line: str) -> bool:
    opened = 0
    for run in re.findall("`+", line):
        if not opened:
            opened = len(run)
        elif len(run) == opened:
            opened = 0
    return opened > 0

"""What may be printed: text from clients and models is never trusted with the terminal."""

import json
import shutil
import sys
import unicodedata
from datetime import UTC, datetime

import click

from storage.job_state import JobState

_COLOURS = {
    JobState.QUEUED: "cyan",
    JobState.RUNNING: "blue",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.INTERRUPTED: "magenta",
}
# These change the direction of what follows, so that it reads other than it is.
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_CONTROLS = {"Cc", "Cs", "Zl", "Zp"}
_WIDTH_WITHOUT_TERMINAL = 160


def safe(text: object) -> str:
    """The text with every control character but newline and tab escaped, as `\\x1b`."""
    return "".join(
        each if each in "\n\t" or not _is_control(each) else each.encode("unicode_escape").decode()
        for each in str(text)
    )


def one_line(text: str) -> str:
    """The text with each run of white space made one space, safe to print."""
    return safe(" ".join(text.split()))


def fitted(line: str, columns: int) -> str:
    """The line cut to so many columns; wide characters take two."""
    used = 0
    for place, each in enumerate(line):
        used += 1 + (unicodedata.east_asian_width(each) in "WF")
        if used > columns:
            return line[: max(place - 1, 0)] + "…"
    return line


def width() -> int:
    """The terminal's columns; 160 where the output is no terminal."""
    if not sys.stdout.isatty():
        return _WIDTH_WITHOUT_TERMINAL
    return shutil.get_terminal_size().columns


def coloured_state(state: JobState, columns: int = 0) -> str:
    return click.style(f"{state.value:<{columns}}", fg=_COLOURS[state])


def heading(text: str) -> str:
    return click.style(text, bold=True)


def time_of_day(at: float | None) -> str:
    """A time in unix seconds as the local time; a dash for none."""
    if at is None:
        return "-"
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def seconds(value: float) -> str:
    """A span of time to about three digits: `12.3 ms`, `4.56 s`, `1 h 02 min`."""
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 120:
        return f"{value:.2f} s"
    minutes = round(value / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def disk(size: int) -> str:
    """Bytes of disk: `512 B`, `12.0 KiB`, `3.4 GiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def bar(part: float, columns: int) -> str:
    """A bar that fills `part` (0 to 1) of so many columns, to an eighth of one."""
    eighths = round(min(max(part, 0), 1) * columns * 8)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def print_json(value: object) -> None:
    """Indented JSON; what `safe` would escape is escaped as JSON does it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(_json_escape(each) for each in text))


def _is_control(character: str) -> bool:
    return (
        unicodedata.category(character) in _CONTROLS
        or unicodedata.bidirectional(character) in _DIRECTIONS
    )


def _json_escape(character: str) -> str:
    return f"\\u{ord(character):04x}" if character != "\n" and _is_control(character) else character

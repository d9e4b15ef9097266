"""Tools that match a regular expression, in time linear in what is searched."""

import time
from collections.abc import Sequence

import re2

from models.conversation import Tool
from service.tool_search.searched_text import searched_text

MOST_CHARACTERS = 200
# Bounds how large a program `((a{100}){100}){100}` becomes: it is refused. Of four times this some
# take seconds to compile, in which no other thread runs.
_PROGRAM_BYTES = 1 << 18
MOST_SECONDS = 1.0


class BadPattern(Exception):
    """What is wrong with it, in words that the model can act on."""


class TookTooLong(Exception):
    """The search was given up."""


def matching(pattern: str, tools: Sequence[Tool]) -> list[Tool]:
    """Those whose name matches, then those of which anything else does, upper and lower case being
    the same. RE2 has no backtracking. Raises BadPattern, TookTooLong."""
    if len(pattern) > MOST_CHARACTERS:
        raise BadPattern(f"the pattern has {len(pattern)} characters; {MOST_CHARACTERS} at most")
    options = re2.Options()
    options.case_sensitive, options.log_errors, options.never_capture = False, False, True
    options.max_mem = _PROGRAM_BYTES
    try:
        search = re2.compile(pattern, options).search
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
        raise BadPattern(f"the pattern is no regular expression of RE2's: {why}") from error
    except UnicodeEncodeError as error:
        raise BadPattern("the pattern has half of a character; search for whole ones") from error
    named, others, until = list[Tool](), list[Tool](), time.monotonic() + MOST_SECONDS
    for tool in tools:
        if search(searched_text(tool)):
            (named if search(tool.name) else others).append(tool)
        if time.monotonic() > until:
            raise TookTooLong
    return [*named, *others]

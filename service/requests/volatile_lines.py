"""Lines that clients add to system texts, and change from request to request.

They say nothing to the model, and no prompt that has them would begin as another does.
"""

import re

from models.conversation import Mark, Text

# As Claude Code's `x-anthropic-billing-header: cc_version=2.1.200.abc; cc_entrypoint=cli;`.
_ATTRIBUTION = re.compile(r"x-anthropic-billing-header:[ \t]*\w+=.*")
# As `<total_tokens>9000 tokens left</total_tokens>` and `Token usage: 1/20; 19 remaining`.
_COUNTER = re.compile(
    r"<total_tokens>[ \t]*\d+ tokens left[ \t]*</total_tokens>"
    r"|Token usage: \d+/\d+; \d+ remaining"
)


def without_volatile_lines(text: Text, *, leads: bool) -> Text:
    """A block of system text without such lines, and without the empty ones that led to them.

    Counters are taken from text that `leads` the conversation only: there the client puts in a new
    one each time, but a later system turn stays as it was. A block that had nothing else is empty.
    """
    lines = text.text.split("\n")
    kept: list[str] = []
    for line in lines:
        said = line.rstrip()
        if not (_ATTRIBUTION.fullmatch(said) or (leads and _COUNTER.fullmatch(said))):
            kept.append(line)
            continue
        while kept and not kept[-1].strip():
            kept.pop()
    if len(kept) == len(lines):
        return text
    rest = "\n".join(kept).strip("\n")
    return Text(rest, tuple(Mark(len(rest), each.ttl_seconds) for each in text.marks))

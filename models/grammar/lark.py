"""Pieces of llguidance's Lark, and whether a grammar made of them can be compiled."""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits

# A grammar of this size takes a second to compile; the schemas of 150 tools make a fifth of it.
MAX_CHARACTERS = 2_000_000
# llguidance numbers symbols with 16 bits. Its other limits bound time as they are: compiling to
# about a second, a step to some tens of milliseconds.
LIMITS = LLParserLimits(max_grammar_size=60_000, verbose_errors=False)


class GrammarError(Exception):
    """No grammar can be made of a schema: of that of `tool`, or else of the output's.

    Says why, for people: what stands where, in words that follow "its schema".
    """

    def __init__(self, why: str, tool: str | None = None) -> None:
        super().__init__(why)
        self.tool = tool


def literal(text: str) -> str:
    """The expression of just that text."""
    return json.dumps(text)


def token(id: int) -> str:
    """The expression of just that token, by its id."""
    return f"<[{id}]>"


def either(expressions: Iterable[str]) -> str:
    return "(" + " | ".join(expressions) + ")"


def grammar(start: str, rules: Iterable[str] = ()) -> str:
    """A whole grammar: what it begins with, and rules that this refers to."""
    return "\n".join((f"start: {start}", *rules, ""))


def checked(text: str, tool: str | None = None) -> str:
    """The grammar, which compiles. Raises GrammarError."""
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"makes a grammar of more than {MAX_CHARACTERS} characters", tool)
    if fault := _fault(_Text(text)):
        raise GrammarError(fault, tool)
    return text


class _Text:
    """A text as the key of a cache that does not keep it."""

    def __init__(self, text: str) -> None:
        self.text: str | None = text
        self.digest = hashlib.blake2b(text.encode(), digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and other.digest == self.digest


@lru_cache(maxsize=4096)
def _fault(key: _Text) -> str:
    text, key.text = key.text, None
    assert text is not None
    failed, messages = LLMatcher.validate_grammar_with_warnings(text, limits=LIMITS)
    return _in_words(messages[0]) if failed else ""


def _in_words(message: str) -> str:
    """llguidance's message without the grammar and the place in it."""
    line = message.split("\n")[0]
    why = line.rpartition("failed to compile JSON schema: ")[2] or line
    if "symbols.len()" in why or "grammar size" in why:
        return "is too large for a grammar"
    return f"cannot be made a grammar: {why[:200]}"

"""Pieces of llguidance's Lark, and whether a grammar made of them can be compiled."""

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache, lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

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


def checked_together(text: str, alone: Iterable[tuple[str, str]]) -> str:
    """The grammar of the calls of several tools, which compiles; `alone` are the tools and the
    grammar of each by itself. Raises GrammarError, of the first tool that has none by itself."""
    try:
        return checked(text)
    except GrammarError:
        for tool, its in alone:
            checked(its, tool)
        raise


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
    # Any token will do for those that it names. Some limits are met at the first mask only.
    text = re.sub(r"<\[\d+\]>", token(_Bytes.marker), text)
    matcher = LLMatcher(_byte_tokenizer(), text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return _in_words(matcher.get_error()) if matcher.is_error() else ""


class _Bytes:
    """A vocabulary that is quick to make: every byte, a marker, and an end."""

    marker, eos_token_id, bos_token_id = 256, 257, None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<marker>", b"<end>")
    special_token_ids = (256, 257)

    def __call__(self, text: bytes) -> list[int]:
        return [*text]


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


def _in_words(message: str) -> str:
    """llguidance's message without the grammar and the place in it."""
    lines = message.split("\n")
    why = lines[0].rpartition("failed to compile JSON schema: ")[2]
    why += "".join(f" {each}" for each in lines if each.startswith("error: "))
    if "symbols.len()" in why or "grammar size" in why:
        return "is too large for a grammar"
    return f"cannot be made a grammar: {why[:200]}"

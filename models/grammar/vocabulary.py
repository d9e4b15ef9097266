"""The tokens of a checkpoint as llguidance needs them, and the grammars compiled over them."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from models.grammar.lark import LIMITS
from models.parsing.token_text import TokenBytes

_KEPT_GRAMMARS = 16  # each may hold some megabytes
_MARKER = re.compile(r"</?[^<>\s]+>")


class GuideError(Exception):
    """An answer cannot be guided any further. One sentence for people."""


class Vocabulary:
    """Every token's bytes, as parsers read them. Special tokens and markers are no text: only
    grammars that name them by id allow them.

    Takes half a second to make for 150,000 tokens, and 100 MB.
    """

    def __init__(self, folder: Path) -> None:
        """Of the `tokenizer.json` in `folder`. Raises ValueError for one of unknown kind."""
        self._tokens = _Tokens(Tokenizer.from_file(str(folder / "tokenizer.json")))
        self.token_bytes = self._tokens.token_bytes
        self.size = len(self._tokens.tokens) - 1
        self._llguidance = LLTokenizer(TokenizerWrapper(self._tokens))
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()

    def matcher(self, grammar: str) -> LLMatcher:
        """At the beginning of the grammar, which is compiled once. Raises GuideError."""
        compiled = self._matchers.pop(grammar, None)
        if compiled is None:
            compiled = LLMatcher(self._llguidance, grammar, log_level=0, limits=LIMITS)
            if compiled.is_error():
                raise GuideError(f"the grammar cannot be compiled: {one_line(compiled)}")
            if len(self._matchers) == _KEPT_GRAMMARS:
                self._matchers.popitem(last=False)
        self._matchers[grammar] = compiled
        return compiled.deep_copy()

    def written(self, ids: Sequence[int]) -> str:
        """What the ids say, special tokens and markers by their names."""
        tokens = (self._tokens.tokens[id] for id in ids if id < self.size)
        return b"".join(tokens).decode(errors="replace")


class _Tokens:
    """What llguidance asks of a tokenizer. Its end of text is one token more than there are: where
    a grammar may end, it is for the guide to say what may follow."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.token_bytes = TokenBytes(tokenizer)
        self.eos_token_id = tokenizer.get_vocab_size(with_added_tokens=True)
        names = _names_of_special(tokenizer)
        self.tokens = [
            names[id].encode() if id in names else self.token_bytes[id]
            for id in range(self.eos_token_id)
        ]
        self.tokens.append(b"end of the grammar")
        self._special = frozenset(names)
        self.special_token_ids = [*names, self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text that a grammar leaves no choice about."""
        characters = text.decode(errors="replace")
        ids = self._tokenizer.encode(characters, add_special_tokens=False).ids
        spells_marker = not self._special.isdisjoint(ids)  # which it must not be
        if spells_marker or b"".join(self.tokens[id] for id in ids) != text:
            return self._longest_first(text)
        return ids

    def _longest_first(self, text: bytes) -> list[int]:
        ids: list[int] = []
        while text:
            longest = min(len(text), self._longest)
            size = next(size for size in range(longest, 0, -1) if text[:size] in self._by_text)
            ids.append(self._by_text[text[:size]])
            text = text[size:]
        return ids

    @cached_property
    def _by_text(self) -> dict[bytes, int]:
        ordinary = (id for id in range(self.eos_token_id) if id not in self._special)
        return {self.tokens[id]: id for id in ordinary if self.tokens[id]}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_text))


def one_line(matcher: LLMatcher) -> str:
    """What is wrong with it, without the answer so far."""
    return matcher.get_error().split("\n")[0][:200]


def _names_of_special(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.get_added_tokens_decoder()
    assert tokenizer.decoder is not None  # TokenBytes would have refused it
    # Byte-level vocabularies have every text without added tokens. SentencePiece ones have pieces
    # among those: runs of spaces, tags of HTML.
    byte_level = b"ByteLevel" in tokenizer.decoder.__getstate__()
    return {
        id: token.content
        for id, token in added.items()
        if token.special or (byte_level and _MARKER.fullmatch(token.content))
    }

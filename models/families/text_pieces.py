"""Long texts in pieces, each of which is encoded alone as it is within the whole."""

import re
from collections.abc import Iterator
from itertools import pairwise

from tokenizers import Tokenizer, normalizers

_CHARACTERS = 100_000

# Between a letter or digit and one of these signs, and between a letter and a digit, byte-level
# tokenizers end one word and begin the next, whatever else stands around them; and nothing after
# such a place composes with what is before it. The apostrophe (of `it's`) is none of them.
_SIGNS = (
    ' \t\r\n!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'
    "\u3001\u3002\uff01\uff0c\uff0e\uff1a\uff1b\uff1f"  # as in Chinese and Japanese
)
_END_OF_WORD = re.compile(f"[^\\W\\d_](?=[0-9{re.escape(_SIGNS)}])|[0-9](?=[{re.escape(_SIGNS)}])")


class TextPieces:
    def __init__(self, tokenizer: Tokenizer, characters: int = _CHARACTERS) -> None:
        self._characters = characters
        self._may_cut = _ends_words(tokenizer)

    def of(self, text: str) -> list[str]:
        """Of so many characters or up to the next end of a word; the text itself for a tokenizer
        that looks at it as a whole."""
        if not self._may_cut or len(text) <= self._characters:
            return [text]
        places = [0, *_cuts(text, self._characters), len(text)]
        return [text[start:end] for start, end in pairwise(places)]


def _cuts(text: str, characters: int) -> Iterator[int]:
    last = 0
    while len(text) - last > characters:
        ends = _END_OF_WORD.finditer(text, last + characters - 1)
        # The pattern's letters include such numbers as a raised 2.
        place = next((each.end() for each in ends if _is_plain(each[0])), None)
        if place is None:
            return
        yield place
        last = place


def _is_plain(character: str) -> bool:
    return character.isalpha() or character.isdecimal()


def _ends_words(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer ends words there, and encodes each by itself."""
    splitter = tokenizer.pre_tokenizer
    if splitter is None or not isinstance(tokenizer.normalizer, normalizers.NFC | None):
        return False
    if not all(each.special for each in tokenizer.get_added_tokens_decoder().values()):
        return False  # found in a text before its words are

    def words(text: str) -> list[str]:
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    probes = [
        (before, f"{sign}{after}")
        for before in ("word", "it's a Word", "größe", "\n你好", "x12")
        for sign in f"{_SIGNS}0"
        for after in ("", "a", " b", "1", "\n.")
        if not (before[-1] + sign).isdecimal()
    ]
    return all(words(before + after) == words(before) + words(after) for before, after in probes)

"""Tools by how well some words describe them: BM25 (Robertson and Zaragoza, 2009)."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from models.conversation import Tool
from service.tool_search.searched_text import searched_text

# The usual values: how soon a word's repetitions count no more, and how much length counts.
_SATURATION, _BY_LENGTH = 1.5, 0.75
# `readFile` and `read_file` are two words.
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")


def ranked(query: str, tools: Sequence[Tool]) -> list[Tool]:
    """Those that have any of the words, the best first; of equals, in their order."""
    wanted = set(_words(query))
    texts = [_words(searched_text(each)) for each in tools]
    counts = [Counter(each for each in text if each in wanted) for text in texts]
    having = Counter(word for each in counts for word in each)
    usual = max(1, sum(map(len, texts))) / max(1, len(texts))

    def score(count: Counter[str], length: int) -> float:
        norm = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * length / usual)
        return sum(
            math.log(1 + (len(tools) - having[word] + 0.5) / (having[word] + 0.5))
            * times
            * (_SATURATION + 1)
            / (times + norm)
            for word, times in count.items()
        )

    scores = [score(count, len(text)) for count, text in zip(counts, texts, strict=True)]
    found = [place for place, each in enumerate(counts) if each]
    return [tools[place] for place in sorted(found, key=lambda place: -scores[place])]


def _words(text: str) -> list[str]:
    return [_stem(each.lower()) for each in _WORD.findall(text)]


def _stem(word: str) -> str:
    """Without the plural of most English words, so that `files` finds `file`."""
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word

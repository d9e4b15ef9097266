"""Tools by how well some words describe them: BM25 (Robertson and Zaragoza, 2009)."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from models.conversation import Tool
from service.tool_search.searched_text import searched_text

# The usual values: how soon a word's repetitions count no more, and how much length counts.
_SATURATION, _BY_LENGTH = 1.5, 0.75
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # `readFile` is two words
_WORD = re.compile(r"[^\W_]+")  # and so is `read_file`
# Some hundred tools at a time, as long as nothing of them changes.
_KEPT = 2048


def ranked(query: str, tools: Sequence[Tool]) -> list[Tool]:
    """Those that have any of the words, the best first; of equals, in their order."""
    wanted = [_forms(each) for each in dict.fromkeys(_words(query))]
    texts = [_counted(searched_text(each)) for each in tools]
    counts = [[sum(map(text.__getitem__, forms)) for forms in wanted] for text, _ in texts]
    weights = [
        _weight(len(tools), sum(count[place] > 0 for count in counts))
        for place in range(len(wanted))
    ]
    usual = max(1, sum(length for _, length in texts)) / max(1, len(texts))

    def score(place: int) -> float:
        length = texts[place][1]
        norm = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * length / usual)
        return sum(
            weight * times * (_SATURATION + 1) / (times + norm)
            for weight, times in zip(weights, counts[place], strict=True)
        )

    scores = {place: score(place) for place, count in enumerate(counts) if any(count)}
    return [tools[place] for place in sorted(scores, key=lambda place: -scores[place])]


def _weight(all_texts: int, having: int) -> float:
    return math.log(1 + (all_texts - having + 0.5) / (having + 0.5))


def _forms(word: str) -> set[str]:
    """With the plural of most English words, so that `files` finds `file`."""
    return {word, f"{word}s", word.removesuffix("s")}


def _words(text: str) -> list[str]:
    return _WORD.findall(_HUMP.sub(" ", text).lower())


@lru_cache(maxsize=_KEPT)
def _counted(text: str) -> tuple[Counter[str], int]:
    """How often each word is there, and how many there are."""
    words = _words(text)
    return Counter(words), len(words)

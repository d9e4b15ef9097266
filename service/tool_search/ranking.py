"""Tools by how well some words describe them: BM25 (Robertson and Zaragoza, 2009)."""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from models.conversation import Tool
from service.tool_search.matching import MOST_SECONDS, TookTooLong
from service.tool_search.searched_text import searched_text

# The usual values: how soon a word's repetitions count no more, and how much length counts.
_SATURATION, _BY_LENGTH = 1.5, 0.75
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # `readFile` is two words
_WORD = re.compile(r"[^\W_]+")  # and so is `read_file`
# Some hundred tools at a time, as long as nothing of them changes.
_KEPT = 2048


def ranked(query: str, tools: Sequence[Tool]) -> list[Tool]:
    """Those that have any of the words, the best first; of equals, in their order. Raises
    TookTooLong; what was counted until then is kept, so that another search gets further."""
    # The plural of most English words: `files` finds `file`, and the reverse.
    forms = {
        form: word.removesuffix("s")
        for word in _words(query)
        for form in (word.removesuffix("s"), word, f"{word.removesuffix('s')}s")
    }
    texts, until = list[tuple[Counter[str], int]](), time.monotonic() + MOST_SECONDS
    for tool in tools:
        texts.append(_counted(searched_text(tool)))
        if time.monotonic() > until:
            raise TookTooLong
    counts = [_wanted(text, forms) for text, _ in texts]
    having = Counter(word for each in counts for word in each)
    usual = max(1, sum(length for _, length in texts)) / max(1, len(texts))

    def score(place: int) -> float:
        length = texts[place][1]
        norm = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * length / usual)
        return sum(
            math.log(1 + (len(tools) - having[word] + 0.5) / (having[word] + 0.5))
            * times
            * (_SATURATION + 1)
            / (times + norm)
            for word, times in counts[place].items()
        )

    scores = {place: score(place) for place, count in enumerate(counts) if count}
    return [tools[place] for place in sorted(scores, key=lambda place: -scores[place])]


def _wanted(text: Counter[str], forms: Mapping[str, str]) -> Counter[str]:
    found = Counter[str]()
    for form in sorted(text.keys() & forms.keys()):
        found[forms[form]] += text[form]
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(_HUMP.sub(" ", text).lower())


@lru_cache(maxsize=_KEPT)
def _counted(text: str) -> tuple[Counter[str], int]:
    """How often each word is there, and how many there are."""
    words = _words(text)
    return Counter(words), len(words)

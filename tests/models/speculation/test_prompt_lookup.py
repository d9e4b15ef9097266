"""Drafts from the text itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.speculation.prompt_lookup import PromptLookup
from models.speculation.text import Text

Found = tuple[tuple[int, ...], str]


def found(text: Text, most: int) -> Found | None:
    lookup = PromptLookup()
    offer = lookup.offer(text.ids)
    return None if offer is None else (tuple(lookup.draft(text.ids, most).tolist()), offer.kind)


def plain(ids: list[int], most: int) -> Found | None:
    """The same, looked for from each place."""
    best, place = 1, -1
    for end in range(1, len(ids)):
        match = 0
        while match < min(end, 32) and ids[end - 1 - match] == ids[-1 - match]:
            match += 1
        if match >= best and match >= 2:
            best, place = match, end
    if place < 0:
        return None
    follows = ids[place:]
    kind = max(least for least in (2, 3, 6, 16) if best >= least)
    return tuple(follows[each % len(follows)] for each in range(most)), f"match of {kind}"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], None),
        ([1], None),
        ([1, 1], None),
        ([1, 2, 3, 4], None),
        ([1, 2, 3, 2], None),  # a single token says too little
        ([1, 2, 3, 1, 2], ((3, 1, 2), "match of 2")),
        ([1, 2, 3, 1, 2, 4, 1, 2], ((4, 1, 2), "match of 2")),  # the latest of equals
        ([5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2], ((3, 9, 1), "match of 3")),  # the longest of all
        ([7, 8, 7, 8, 7, 8], ((7, 8, 7), "match of 3")),  # repeats itself
        ([3, 3, 3], ((3, 3, 3), "match of 2")),
    ],
)
def test_what_followed_the_longest_match_is_found(ids: list[int], expected: Found | None) -> None:
    assert found(Text(ids), 3) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60), st.integers(1, 20))
def test_it_makes_no_difference_how_the_tokens_came(ids: list[int], cut: int, most: int) -> None:
    text = Text(ids[:cut])
    for token in ids[cut:]:
        assert text.before(token).tolist() == [*text.ids, token]
        text.extend([token])
    assert text.ids.tolist() == ids
    assert found(text, most) == plain(ids, most)


def test_what_was_seen_of_a_text_stays_as_it_was() -> None:
    text = Text(range(3))
    views = [text.ids]
    for token in range(3, 600):
        text.before(9999)
        text.extend([token])
        views.append(text.ids)
    assert all(np.array_equal(view, np.arange(len(view))) for view in views)


def test_the_longest_match_that_counts_has_32_tokens() -> None:
    ids = [*range(100), *range(100)]
    assert found(Text(ids[:150]), 2) == ((50, 51), "match of 16")

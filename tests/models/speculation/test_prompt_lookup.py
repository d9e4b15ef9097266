"""Drafts from the text itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.speculation.prompt_lookup import Found, PromptLookup


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
    return Found(tuple(follows[each % len(follows)] for each in range(most)), best)


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([], None),
        ([1], None),
        ([1, 1], None),
        ([1, 2, 3, 4], None),
        ([1, 2, 3, 2], None),  # a single token says too little
        ([1, 2, 3, 1, 2], Found((3, 1, 2), 2)),
        ([1, 2, 3, 1, 2, 4, 1, 2], Found((4, 1, 2), 2)),  # the latest of equals
        ([5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2], Found((3, 9, 1), 3)),  # the longest of all
        ([7, 8, 7, 8, 7, 8], Found((7, 8, 7), 4)),  # repeats itself
        ([3, 3, 3], Found((3, 3, 3), 2)),
    ],
)
def test_what_followed_the_longest_match_is_found(ids: list[int], found: Found | None) -> None:
    assert PromptLookup(ids).find(3) == found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60), st.integers(1, 20))
def test_it_makes_no_difference_how_the_tokens_came(ids: list[int], cut: int, most: int) -> None:
    lookup = PromptLookup(ids[:cut])
    for token in ids[cut:]:
        lookup.extend([token])
    assert len(lookup) == len(ids)
    assert lookup.find(most) == plain(ids, most)


def test_a_match_counts_for_32_tokens_at_most() -> None:
    ids = [*range(100), *range(100)]
    assert PromptLookup(ids[:150]).find(2) == Found((50, 51), 32)

"""The automaton of an answer, followed token by token."""

from collections.abc import Sequence

import pytest

from models.grammar.guide import Guide
from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec
from models.grammar.lark import grammar, literal, token
from models.grammar.vocabulary import GuideError, Vocabulary
from tests.models.grammar.following import STOP, ids_of

OPEN, CLOSE = 256, 257


def followed(guide: Guide, ids: Sequence[int]) -> Guide:
    """After ids of which each was allowed, and forced if it had to be."""
    for id in ids:
        mask, forced = guide.mask(), guide.forced()
        assert mask is None or mask[id]
        assert forced in (None, id)
        assert guide.is_free == (mask is None and forced is None)
        guide.advance(id)
    return guide


def test_free_text_is_free_until_an_exit(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Free({OPEN: 1}, text=True), Forced((7, 8), 2), Ended()))
    guide = followed(Guide(spec, vocabulary, {STOP}), ids_of(vocabulary, "some text"))
    assert guide.is_free
    followed(guide, [OPEN])
    assert guide.forced() == 7
    followed(guide, [7, 8])
    assert guide.forced() == STOP


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", False),
        ("a `b` c", False),
        ("a `b", True),
        ("```\ncode\n", True),
        ("```\ncode\n```\n", False),
        ("é ``a ` b`` ", False),
    ],
)
def test_an_exit_inside_of_quoted_code_is_none(
    vocabulary: Vocabulary, text: str, quoted: bool
) -> None:
    spec = GuideSpec((Free({OPEN: 1}, text=True), Ended()))
    guide = followed(Guide(spec, vocabulary, {STOP}), [*ids_of(vocabulary, text), OPEN])
    assert guide.is_free == quoted


def test_outside_of_text_code_is_not_looked_for(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Free({OPEN: 1}), Ended()))
    guide = followed(Guide(spec, vocabulary, {STOP}), [*ids_of(vocabulary, "a `b"), OPEN])
    assert guide.forced() == STOP


CALL = grammar(literal("{") + " /[a-z]{1,3}/ " + literal("}") + token(CLOSE))


def test_a_grammar_limits_every_token_up_to_its_end(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Constrained(CALL, 1), Free()))
    for text, next_allowed in (("", "{"), ("{", "abz"), ("{ab", "az}"), ("{abc", "}")):
        guide = followed(Guide(spec, vocabulary, {STOP}), ids_of(vocabulary, text))
        mask = guide.mask()
        assert mask is not None
        for byte in range(256):
            (id,) = [id for id in range(256) if vocabulary.token_bytes[id] == bytes([byte])]
            if chr(byte) in "{}az":
                assert bool(mask[id]) == (chr(byte) in next_allowed)
        assert not mask[[OPEN, CLOSE, STOP]].any()
    guide = followed(Guide(spec, vocabulary, {STOP}), ids_of(vocabulary, "{abc}", CLOSE))
    assert guide.is_free


def test_what_comes_after_the_next_token_is_known_where_a_grammar_leaves_no_choice(
    vocabulary: Vocabulary,
) -> None:
    choice = grammar('("harbour" | "hill" | "mountain")' + token(CLOSE))
    spec = GuideSpec((Forced((7, 8, 9), 1), Constrained(choice, 2), Free()))
    guide = Guide(spec, vocabulary, {STOP})
    assert guide.foresees
    assert guide.forced_after(7) == (8, 9)
    followed(guide, [7, 8, 9])
    (h, m) = ids_of(vocabulary, "hm")
    for _ in range(2):  # looking ahead changes nothing
        assert guide.forced_after(h) == ()
        assert guide.forced_after(m)[:7] == tuple(ids_of(vocabulary, "ountain"))
    followed(guide, [h])
    (a,) = ids_of(vocabulary, "a")
    assert guide.forced_after(a)[:5] == tuple(ids_of(vocabulary, "rbour"))
    followed(guide, ids_of(vocabulary, "ill"))
    assert guide.forced_after(CLOSE) == ()
    followed(guide, [CLOSE])
    assert not guide.foresees


def test_a_draft_is_cut_where_the_grammar_refuses_it(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Constrained(CALL, 1), Free()))
    guide = Guide(spec, vocabulary, {STOP})
    (brace,) = ids_of(vocabulary, "{")
    for drafted, allowed in (("ab}", "ab}"), ("abcd", "abc"), ("}", ""), ("a{", "a")):
        ids = tuple(ids_of(vocabulary, drafted))
        assert guide.allowed_after(brace, ids) == len(allowed)
    assert guide.allowed_after(*ids_of(vocabulary, "x"), (1, 2)) == 0
    (a,), no_token = ids_of(vocabulary, "a"), vocabulary.size + 3  # a row that pads the vocabulary
    assert guide.allowed_after(brace, (a, no_token, a)) == 1
    assert guide.allowed_after(brace, (no_token,)) == 0
    assert guide.mask() is not None
    end = followed(guide, ids_of(vocabulary, "{abc}"))
    assert end.allowed_after(CLOSE, (1, 2)) == 0  # what follows is another state's matter
    assert followed(end, [CLOSE]).allowed_after(1, (2, 3)) == 2


def test_what_was_written_decides_where_to_go_on(vocabulary: Vocabulary) -> None:
    header = grammar('("a" | "b" | "c")' + token(CLOSE))
    name = vocabulary.written([CLOSE])
    spec = GuideSpec(
        (Constrained(header, 1, {f"a{name}": 2, f"b{name}": 3}), Free(), Forced((5,), 1), Ended())
    )
    for letter, forced in (("a", 5), ("b", STOP), ("c", None)):
        guide = followed(Guide(spec, vocabulary, {STOP}), ids_of(vocabulary, letter, CLOSE))
        assert guide.forced() == forced


def test_a_grammar_without_a_definite_end_is_left_by_stopping(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Constrained(grammar("/[0-9]+/"), 1), Ended()))
    guide = Guide(spec, vocabulary, {STOP})
    for text, may_stop in (("", False), ("1", True), ("2", True)):
        mask = followed(guide, ids_of(vocabulary, text)).mask()
        assert mask is not None
        assert mask[STOP] == may_stop
    followed(guide, [STOP])


def test_where_the_answer_may_not_end_the_stop_ids_are_not_allowed(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Free({OPEN: 1}, may_end=False), Free()))
    guide = Guide(spec, vocabulary, {STOP})
    mask = guide.mask()
    assert mask is not None
    assert [*mask.nonzero()[0]] == [id for id in range(vocabulary.size) if id != STOP]
    assert followed(guide, [OPEN]).mask() is None


@pytest.mark.parametrize("budget", [2, 3, 5, 10])
def test_thinking_ends_just_at_its_budget(vocabulary: Vocabulary, budget: int) -> None:
    """A marker opens it, and it is closed by two tokens."""
    spec = GuideSpec((Free({OPEN: 1}), Free({CLOSE: 2}, close=(9, CLOSE)), Free()), budget)
    guide = followed(Guide(spec, vocabulary, {STOP}), [1])
    mask = guide.mask()
    if budget == 2:  # there is no room for its end
        assert mask is not None
        assert not mask[OPEN]
        return
    assert mask is None
    thinking = [OPEN]
    guide.advance(OPEN)
    while thinking[-1] != CLOSE:
        forced = guide.forced()
        thinking.append(3 if forced is None else forced)
        guide.advance(thinking[-1])
    assert thinking == [OPEN, *[3] * (budget - 3), 9, CLOSE]
    assert guide.forced() is None


def test_thinking_that_the_prompt_opened_counts_from_its_first_token(
    vocabulary: Vocabulary,
) -> None:
    spec = GuideSpec((Free({CLOSE: 1}, close=(CLOSE,)), Free()), 4)
    guide = followed(Guide(spec, vocabulary, {STOP}), [1, 1, 1])
    assert guide.forced() == CLOSE
    assert followed(guide, [CLOSE]).is_free


def test_the_model_may_end_its_thinking_earlier(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Free({CLOSE: 1}, close=(CLOSE,)), Free()), 4)
    assert followed(Guide(spec, vocabulary, {STOP}), [1, CLOSE, 1, 1, 1, 1]).is_free


def test_the_budget_is_one_for_all_thinking_of_an_answer(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Free({OPEN: 1}), Free({CLOSE: 0}, close=(CLOSE,))), 5)
    guide = followed(Guide(spec, vocabulary, {STOP}), [OPEN, 1, CLOSE, 1])
    assert guide.is_free
    mask = followed(guide, [OPEN]).mask()
    assert mask is None
    assert guide.forced() == CLOSE
    mask = followed(guide, [CLOSE]).mask()
    assert mask is not None
    assert [*(~mask).nonzero()[0]] == [OPEN]


def test_a_spec_survives_being_sent(vocabulary: Vocabulary) -> None:
    spec = GuideSpec((Free({OPEN: 1}, True, (CLOSE,), False), Constrained(CALL, 0, {"a": 1})), 7)
    assert GuideSpec.from_json(spec.as_json()) == spec


def test_a_token_that_may_not_come_is_an_error(vocabulary: Vocabulary) -> None:
    for state in (Constrained(CALL, 1), Forced((5,), 1), Ended()):
        with pytest.raises(GuideError, match="does not allow"):
            Guide(GuideSpec((state, Free())), vocabulary, {STOP}).advance(6)


def test_a_grammar_that_is_none_is_an_error(vocabulary: Vocabulary) -> None:
    with pytest.raises(GuideError, match="cannot be compiled"):
        Guide(GuideSpec((Constrained("start: nothing", 1), Free())), vocabulary, {STOP})

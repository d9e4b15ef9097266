"""What llguidance takes for text is what parsers read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.grammar.guide import Guide
from models.grammar.guide_spec import Constrained, Ended, GuideSpec
from models.grammar.lark import grammar, token
from models.grammar.vocabulary import GuideError, Vocabulary


def allowed(vocabulary: Vocabulary, start: str) -> set[int]:
    """What may come first."""
    spec = GuideSpec((Constrained(grammar(start), 1), Ended()))
    mask = Guide(spec, vocabulary, {0}).mask()
    assert mask is not None
    return set(map(int, np.flatnonzero(mask)))


@pytest.fixture(scope="module", params=["smollm2", "qwen", "gemma"])
def real(request: pytest.FixtureRequest) -> Vocabulary:
    folder: Path = request.getfixturevalue(request.param)
    return Vocabulary(folder)


@pytest.mark.parametrize("characters", ["abcdefghijklmnopqrstuvwxyz", " \n\t", '{}[]:, "01'])
def test_tokens_are_the_bytes_that_parsers_read(real: Vocabulary, characters: str) -> None:
    expected = {
        id
        for id in range(real.size)
        if (read := real.token_bytes[id]) and set(read) <= set(characters.encode())
    }
    escaped = "".join(rf"\x{ord(each):02x}" for each in characters)
    assert allowed(real, f"/[{escaped}]+/") - {0} == expected


def test_a_character_may_come_byte_by_byte(real: Vocabulary) -> None:
    first = {id for id in range(real.size) if real.token_bytes[id] == "é".encode()[:1]}
    assert first
    assert first <= allowed(real, "/[é漢]+/")


def test_special_tokens_and_markers_are_no_text(real: Vocabulary) -> None:
    anything = allowed(real, "/(?s:.*)/ " + token(1))
    nothing = {id for id in range(real.size) if not real.token_bytes[id]}
    assert 1 in anything
    assert not anything & (nothing - {1})
    assert len(anything) > real.size * 0.9


def test_a_marker_that_is_not_special_is_no_text(qwen: Path) -> None:
    vocabulary = Vocabulary(qwen)
    call = 151657
    assert vocabulary.written([call]) == "<tool_call>"
    assert call not in allowed(vocabulary, '"<tool_call>"')
    assert call not in allowed(vocabulary, "/<tool_call>|<[a-z]*/")
    assert allowed(vocabulary, token(call)) == {call}


def test_a_grammar_that_gets_too_complex_on_the_way_is_an_error(smollm2: Path) -> None:
    spec = GuideSpec((Constrained(grammar("/(.*a.{30})+/"), 1), Ended()))
    guide = Guide(spec, Vocabulary(smollm2), {0})
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    with pytest.raises(GuideError, match="too complex"):
        follow(guide, tokenizer.encode(("ab" * 8 + "a" * 8 + "b" * 7) * 9).ids)


def follow(guide: Guide, ids: Sequence[int]) -> None:
    for id in ids:
        guide.mask()
        guide.advance(id)

"""Whether what is written follows a grammar, byte by byte."""

import pytest

from models.grammar.guide import Guide
from models.grammar.guide_spec import Constrained, Ended, GuideSpec
from models.grammar.vocabulary import GuideError, Vocabulary

STOP = 258
MARKERS = (256, 257)


def ids_of(vocabulary: Vocabulary, *pieces: str | int) -> list[int]:
    """The tokens of texts, and of markers by their ids."""
    by_byte = {vocabulary.token_bytes[id]: id for id in range(256)}
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += [by_byte[bytes([byte])] for byte in piece.encode()]
    return ids


def follows(vocabulary: Vocabulary, grammar: str, *pieces: str | int) -> bool:
    """Whether it is all that the grammar asks for: then nothing but the stop id may come."""
    guide = Guide(GuideSpec((Constrained(grammar, 1), Ended())), vocabulary, {STOP})
    for token in ids_of(vocabulary, *pieces):
        mask = guide.mask()
        assert mask is not None
        if not mask[token]:
            with pytest.raises(GuideError):
                guide.advance(token)
            return False
        guide.advance(token)
    mask = guide.mask()
    assert mask is not None
    return bool(mask[STOP])

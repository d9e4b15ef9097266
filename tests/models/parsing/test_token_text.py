"""Text from token ids: what comes out piece by piece is what the tokenizer decodes at once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.parsing.token_text import TokenBytes, TokenText

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
BAD = "\ufffd"


def _byte_level() -> Tokenizer:
    """All bytes, some of them joined across the borders of characters, and added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [bytes.fromhex(each) for each in ("f09f", "9880", "e29a", "a0ef", "b88f", "e2808d")]
    joined = [_stand_ins(piece) for piece in (*pieces, "🙂🙂".encode()[:7], b" Hi", b"\n\n")]
    vocabulary = {each: place for place, each in enumerate([*alphabet, *joined])}
    # Their own characters, not stand-ins: some converted vocabularies hold such pieces.
    vocabulary["▁raw piece"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<a tool>", special=False), AddedToken("🙂", special=False)])
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """Pieces with `▁` for a space, and a raw piece for every byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁Hi", "▁", "▁▁", "Hi", "\n", "é", "한", "<0xZZ>", "<0x1>", "👩", "\u200d"]
    vocabulary = [(piece, -1.0) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    strip = decoders.Strip(content=" ", left=1, right=0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in ("<s>", "</s>")])
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in ("▁▁", "<table>")])
    return tokenizer


def _stand_ins(piece: bytes) -> str:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(
        chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in piece
    )


BYTE_LEVEL, SENTENCEPIECE = _byte_level(), _sentencepiece()


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["f09f98", "80"], "😀"),
        (["f09f", "a4", "a3"], "🤣"),
        (["e29aa0", "efb88f"], "⚠\ufe0f"),
        (["e0b89b", "e0b8b1", "e0b9", "89"], "ปั้"),
        (["e0a495", "e0a58d", "e0", "a4b7"], "क्ष"),
        (["f09f998", "2f09f9982"], "🙂🙂"),
        ([each.encode().hex() for each in FAMILY], FAMILY),
        (["80"], BAD),
        (["80", "80", "41"], f"{BAD}{BAD}A"),
        (["f09f98"], BAD),
        (["f09f98", "41"], f"{BAD}A"),
        (["f0", "9f", "98", "e2", "9a", "a0"], f"{BAD}⚠"),
        (["c0af"], f"{BAD}{BAD}"),
        (["eda0bd"], f"{BAD}{BAD}{BAD}"),
        (["2048", "69"], " Hi"),
        ([], ""),
    ],
)
def test_characters_cut_into_tokens_come_out_whole(pieces: list[str], text: str) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = [alphabet.index(_stand_ins(bytes([byte]))) for byte in bytes.fromhex("".join(pieces))]
    assert _fed(BYTE_LEVEL, ids) == BYTE_LEVEL.decode(ids) == text


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["<0xEA>", "<0xB9>", "<0xB0>"], "깰"),
        (["▁Hi", "<0xEA>", "<0xB9>", "<0xB0>", "▁Hi"], "Hi깰 Hi"),
        (["▁", "▁Hi"], " Hi"),
        (["▁▁", "Hi"], " Hi"),
        (["Hi", "\n", "▁Hi"], "Hi\n Hi"),
        (["\n", "▁Hi"], "\n Hi"),
        (["<s>", "▁Hi", "</s>", "▁Hi"], "Hi Hi"),
        (["<0x20>", "Hi"], "Hi"),
        (["<0xZZ>", "<0x1>"], "<0xZZ><0x1>"),
        (["👩", "\u200d", "<0xF0>", "<0x9F>", "<0x91>", "<0xA7>"], "👩\u200d👧"),
    ],
)
def test_pieces_with_spaces_and_raw_bytes_come_out_as_decoded(pieces: list[str], text: str) -> None:
    ids = [SENTENCEPIECE.token_to_id(each) for each in pieces]
    assert _fed(SENTENCEPIECE, ids) == SENTENCEPIECE.decode(ids) == text


def test_bytes_that_are_no_text_become_one_replacement_character_each_time() -> None:
    """The tokenizer's own decoder would take back the good character in front of the bad byte:
    what has been streamed cannot be taken back."""
    ids = [SENTENCEPIECE.token_to_id(each) for each in ("<0xC3>", "<0xA9>", "<0xFF>", "Hi")]
    assert _fed(SENTENCEPIECE, ids) == f"é{BAD}Hi"


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 3), max_size=30))
def test_any_byte_level_tokens_come_out_as_decoded_at_once(ids: list[int]) -> None:
    assert _fed(BYTE_LEVEL, ids) == BYTE_LEVEL.decode(ids)


CHUNKS = st.one_of(
    st.sampled_from(["<s>", "▁Hi", "▁", "▁▁", "Hi", "\n", "é", "한", "<0xZZ>", "\u200d"]).map(
        lambda piece: [piece]
    ),
    st.characters(codec="utf-8").map(
        lambda character: [f"<0x{byte:02X}>" for byte in character.encode()]
    ),
)


@given(st.lists(CHUNKS, max_size=15))
def test_any_sentencepiece_tokens_come_out_as_decoded_at_once(chunks: list[list[str]]) -> None:
    ids = [SENTENCEPIECE.token_to_id(piece) for chunk in chunks for piece in chunk]
    assert _fed(SENTENCEPIECE, ids) == SENTENCEPIECE.decode(ids)


@given(st.lists(st.integers(0, SENTENCEPIECE.get_vocab_size() + 3), max_size=30))
def test_no_piece_ends_inside_a_character(ids: list[int]) -> None:
    fed = TokenText(TokenBytes(SENTENCEPIECE))
    pieces = [*(fed.feed(each) for each in ids), fed.flush()]
    assert not any("\ud800" <= character <= "\udfff" for piece in pieces for character in piece)
    raw = b"".join(TokenBytes(SENTENCEPIECE)[each] for each in ids)
    assert "".join(pieces) == raw.decode("utf-8", "replace").removeprefix(" ")


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="neither a byte-level nor a byte-fallback decoder"):
        TokenBytes(tokenizer)


def test_a_tokenizer_without_a_decoder_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a byte-level nor a byte-fallback decoder"):
        TokenBytes(Tokenizer(models.BPE()))


def _fed(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    text = TokenText(TokenBytes(tokenizer))
    return "".join([*(text.feed(each) for each in ids), text.flush()])

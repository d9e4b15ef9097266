"""Text from token ids that arrive one by one, exact to the byte."""

import codecs
import re
from collections.abc import Iterable
from functools import cache

import orjson
from tokenizers import Tokenizer

_RAW_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenBytes:
    """The bytes that each token id stands for; special tokens stand for none.

    Knows the two kinds of vocabulary in use: byte-level BPE (GPT-2's alphabet of printable
    stand-ins) and SentencePiece pieces with `▁` for a space and `<0xNN>` for a raw byte.
    Raises ValueError for a tokenizer of any other kind.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = {id for id, token in added.items() if token.special}
        self._added = set(added) - self._special
        kinds = set(_decoder_kinds(tokenizer))
        self.is_byte_level = "ByteLevel" in kinds
        if self.is_byte_level:
            self._piece_bytes = _byte_level
        elif "ByteFallback" in kinds:
            self._piece_bytes = _sentencepiece
            self._added.clear()  # pieces like any other: Gemma's has runs of `▁` among them
        else:
            raise ValueError(
                "its tokenizer.json has neither a byte-level nor a byte-fallback decoder"
            )
        # SentencePiece puts a space before the first word and its decoder takes it off again.
        self.strips_first_space = "Strip" in kinds

    def __getitem__(self, token: int) -> bytes:
        if token in self._special:
            return b""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:  # a padded row of the vocabulary, never trained
            return b""
        return piece.encode() if token in self._added else self._piece_bytes(piece)


class TokenText:
    """Decodes one answer. The pieces it returns, joined, are the decoding of all ids at once.

    A character is returned when its last byte is there; bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = token_bytes.strips_first_space

    def feed(self, token: int) -> str:
        text = self._decoder.decode(self._token_bytes[token])
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """The end of the answer: an unfinished character becomes one U+FFFD."""
        return self._decoder.decode(b"", final=True)


def _decoder_kinds(tokenizer: Tokenizer) -> Iterable[str]:
    if tokenizer.decoder is None:
        return
    # Its state is the decoder's part of tokenizer.json; the whole would be megabytes to read.
    pending = [orjson.loads(tokenizer.decoder.__getstate__())]
    while pending:
        decoder = pending.pop()
        yield decoder["type"]
        pending.extend(decoder.get("decoders", ()))


def _byte_level(piece: str) -> bytes:
    alphabet = _byte_of_stand_in()
    try:
        return bytes(alphabet[each] for each in piece)
    except KeyError:  # not written in stand-ins: some converters add pieces as they read
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if _RAW_BYTE.fullmatch(piece):
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()


@cache
def _byte_of_stand_in() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes stand for themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if byte not in set(printable))
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return alphabet

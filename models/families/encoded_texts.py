"""Token ids of texts, kept: the next turn of a conversation has all the texts of this one."""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from threading import Lock

from tokenizers import Tokenizer

from models.families.text_pieces import TextPieces

_KEPT_CHARACTERS = 16_000_000  # with their ids, some 32 to 64 MB
# While they are encoded texts take up to 500 bytes a character.
_ENCODED_AT_ONCE_CHARACTERS = 1_000_000


class EncodedTexts:
    """May be asked by several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.pieces = TextPieces(tokenizer)
        self._lock = Lock()
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0

    def of(self, texts: Sequence[str]) -> "list[array[int]]":
        pieces = [self.pieces.of(each) for each in texts]
        encoded = self._encoded(dict.fromkeys(chain.from_iterable(pieces)))
        return [_joined([encoded[each] for each in text]) for text in pieces]

    def _encoded(self, texts: Collection[str]) -> "dict[str, array[int]]":
        found = self._found(texts)
        for portion in _portions([each for each in texts if each not in found]):
            # A batch, since only that releases the interpreter lock while it encodes.
            encoded = self._tokenizer.encode_batch_fast(portion, add_special_tokens=False)
            new = {text: array("I", each.ids) for text, each in zip(portion, encoded, strict=True)}
            self._keep(new)
            found |= new
        return found

    def _found(self, texts: Iterable[str]) -> "dict[str, array[int]]":
        found: dict[str, array[int]] = {}
        with self._lock:
            for each in texts:
                if (ids := self._kept.get(each)) is not None:
                    found[each] = ids
                    self._kept.move_to_end(each)
        return found

    def _keep(self, encoded: "dict[str, array[int]]") -> None:
        with self._lock:
            for text, ids in encoded.items():
                if text not in self._kept:
                    self._characters += len(text)
                self._kept[text] = ids
            while self._characters > _KEPT_CHARACTERS:
                text, _ = self._kept.popitem(last=False)
                self._characters -= len(text)


def _joined(parts: "list[array[int]]") -> "array[int]":
    if len(parts) == 1:
        return parts[0]
    ids = array("I")
    for each in parts:
        ids.extend(each)
    return ids


def _portions(texts: Iterable[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    characters = 0
    for each in texts:
        if portion and characters + len(each) > _ENCODED_AT_ONCE_CHARACTERS:
            yield portion
            portion, characters = [], 0
        portion.append(each)
        characters += len(each)
    if portion:
        yield portion

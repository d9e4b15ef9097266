"""Token ids of texts, kept: the next turn of a conversation has all the texts of this one."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from tokenizers import Tokenizer

_KEPT_CHARACTERS = 16_000_000  # with their ids, some 32 to 64 MB


class EncodedTexts:
    """May be asked by several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0

    def of(self, texts: Sequence[str]) -> "list[array[int]]":
        found = dict(self._found(texts))
        new = [each for each in dict.fromkeys(texts) if each not in found]
        # A batch, since only that releases the interpreter lock while it encodes.
        encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        found.update((text, array("I", each.ids)) for text, each in zip(new, encoded, strict=True))
        self._keep({each: found[each] for each in new})
        return [found[each] for each in texts]

    def _found(self, texts: Sequence[str]) -> "list[tuple[str, array[int]]]":
        with self._lock:
            kept = [each for each in texts if each in self._kept]
            for each in kept:
                self._kept.move_to_end(each)
            return [(each, self._kept[each]) for each in kept]

    def _keep(self, encoded: "dict[str, array[int]]") -> None:
        with self._lock:
            for text, ids in encoded.items():
                if text not in self._kept:
                    self._characters += len(text)
                self._kept[text] = ids
            while self._characters > _KEPT_CHARACTERS:
                text, _ = self._kept.popitem(last=False)
                self._characters -= len(text)

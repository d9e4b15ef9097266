"""A checkpoint's tokenizer, as prompts are made with it: markers by id, all else as plain text."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from tokenizers import AddedToken, Tokenizer

from models.catalog import Checkpoint, CheckpointError
from models.families.encoded_texts import EncodedTexts
from models.parsing.token_text import TokenBytes

# A marker by its id, a text, or ids as they are.
Piece = int | str | tuple[int, ...]


class PromptTokens:
    """`special` are the ids of all tokens that the tokenizer calls special, by their text.

    In byte-level vocabularies these are all that were added: every text can do without them.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError for a tokenizer that cannot be read."""
        self._checkpoint = checkpoint.id
        file = checkpoint.path / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no narrower kind
            raise CheckpointError(
                f"{file} is not a tokenizer ({error}): pull or copy it again"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # as plain text
        try:
            self.token_bytes = TokenBytes(self._tokenizer)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.id} cannot be served: {error}") from error
        if self.token_bytes.is_byte_level:
            self._tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType]
                [
                    AddedToken(each.content, special=True, normalized=False)
                    for each in self._tokenizer.get_added_tokens_decoder().values()
                    if not each.special
                ]
            )
        self._encoded = EncodedTexts(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: Mapping[str, int] = {
            token.content: id for id, token in added.items() if token.special
        }

    def ids(self, *markers: str) -> list[int]:
        """Raises CheckpointError for a marker that the tokenizer does not have as special."""
        missing = [each for each in markers if each not in self.special]
        if missing:
            raise CheckpointError(
                f"{self._checkpoint} cannot be served: its tokenizer has no special token "
                f"{missing[0]}; pull or copy it again"
            )
        return [self.special[each] for each in markers]

    def plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encoded_at_once(self, texts: Iterable[str]) -> Iterator[str]:
        """What is encoded at once of texts between which markers stand."""
        return chain.from_iterable(map(self._encoded.pieces.of, texts))

    def encode(self, pieces: Iterable[Piece]) -> "array[int]":
        """The ids of a prompt in pieces: ids, and texts, none of which becomes a marker.

        Neighbouring texts are encoded as one.
        """
        texts, markers = [""], [array("I")]  # those that follow each text
        after = markers[0]
        for each in pieces:
            if isinstance(each, str):
                if after:
                    texts.append(each)
                    after = array("I")
                    markers.append(after)
                else:
                    texts[-1] += each
            elif isinstance(each, int):
                after.append(each)
            else:
                after.extend(each)
        ids = array("I")
        for text, after in zip(self._encoded.of(texts), markers, strict=True):
            ids.extend(text)
            ids.extend(after)
        return ids

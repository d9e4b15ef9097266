"""ChatML: turns between markers, which llama's and Qwen's checkpoints have in common."""

import re
from collections.abc import Mapping

from models.families.prompt_tokens import Piece, PromptTokens

START, END = "<|im_start|>", "<|im_end|>"
_MARKER = re.compile(r"(<[^<>\s]+>)")

Pieces = tuple[Piece, ...]


class ChatML:
    """Writes turns in pieces: markers as ids, all else as text."""

    def __init__(self, tokens: PromptTokens) -> None:
        """Raises CheckpointError for a tokenizer that lacks the markers."""
        self.start, self.end = tokens.ids(START, END)

    def turn(self, role: str, *pieces: Piece) -> Pieces:
        return self.ended(*self.beginning(role, *pieces))

    def ended(self, *pieces: Piece) -> Pieces:
        """A turn that went on."""
        return (*pieces, self.end, "\n")

    def beginning(self, role: str, *pieces: Piece) -> Pieces:
        """A turn that goes on."""
        return (self.start, f"{role}\n", *pieces)


def pieces_of(text: str, markers: Mapping[str, int]) -> Pieces:
    """A family's own words, in which what spells a marker is one."""
    return tuple(markers.get(each, each) for each in _MARKER.split(text) if each)

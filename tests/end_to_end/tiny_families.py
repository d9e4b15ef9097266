"""A tiny model of each family whose models call tools, and how such a model writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from models.catalog import Checkpoint
from models.conversation import Block
from tests.end_to_end.written_answers import (
    Marker,
    Writer,
    gemma4,
    glimmer,
    ids_of,
    qwen_json,
    qwen_xml,
)
from tests.support.tiny_gemma import write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import write_tiny_qwen


@dataclass(frozen=True)
class Tiny:
    """`result` is what each result of a tool begins with in its prompts. Those are `opened`, and
    `opened_after_results`, if they open the answer's thinking."""

    write: Callable[[Path], Path]
    writer: Writer
    result: tuple[str, ...]
    opened: bool = False
    opened_after_results: bool = False

    def ids(
        self, checkpoint: Checkpoint, answer: Sequence[Block], *, after_results: bool
    ) -> list[int]:
        """The tokens of an answer."""
        opened = self.opened_after_results if after_results else self.opened
        return ids_of(checkpoint, self.writer(answer, opened))


FAMILIES = {
    "qwen3": Tiny(
        partial(write_tiny_qwen, generation="qwen3"), qwen_json, (Marker("<tool_response>"),)
    ),
    "qwen3.5": Tiny(
        partial(write_tiny_qwen, generation="qwen3.5"),
        qwen_xml,
        (Marker("<tool_response>"),),
        opened=True,
        opened_after_results=True,
    ),
    "gemma4": Tiny(
        write_tiny_gemma4, gemma4, (Marker("<|tool_response>"),), opened_after_results=True
    ),
    "glimmer": Tiny(write_tiny_glimmer, glimmer, (Marker("<|start|>"), "tool ")),
}

"""Families: how each kind of checkpoint reads conversations and writes answers."""

from collections.abc import Callable, Iterator

from models.catalog import Checkpoint, CheckpointError, NoChatTemplate
from models.families.family import Family
from models.families.gemma3 import Gemma3Family
from models.families.gemma4 import Gemma4Family
from models.families.generic import GenericFamily
from models.families.glimmer import GlimmerFamily
from models.families.llama import LlamaFamily
from models.families.qwen import QwenFamily

# By what their chat templates write, the more particular first.
_FAMILIES: dict[str, Callable[[Checkpoint], Family]] = {
    "<atem:function_calls>": GlimmerFamily,
    "<tool_call>": QwenFamily,
    "<|im_start|>": LlamaFamily,
    "<|turn>": Gemma4Family,
    "<start_of_turn>": Gemma3Family,
}


def family_of(checkpoint: Checkpoint) -> Family:
    """The first that knows the checkpoint's own chat template; the generic one knows any that can
    hold a conversation. Raises CheckpointError for a checkpoint that no family speaks for. Reads
    the tokenizer: to be called off the event loop."""
    for family in _candidates(checkpoint):
        try:
            return family(checkpoint)
        except CheckpointError:
            continue
    return GenericFamily(checkpoint)


def _candidates(checkpoint: Checkpoint) -> Iterator[Callable[[Checkpoint], Family]]:
    try:
        template = checkpoint.chat_template()
    except NoChatTemplate:
        if checkpoint.architecture.startswith("gemma3"):
            yield Gemma3Family
        return
    yield from (family for mark, family in _FAMILIES.items() if mark in template)

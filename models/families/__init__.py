"""Families: how each kind of checkpoint reads conversations and writes answers."""

from models.catalog import Checkpoint
from models.families.family import Family
from models.families.llama import LlamaFamily


def family_of(checkpoint: Checkpoint) -> Family:
    """Raises CheckpointError for a checkpoint that no family speaks for. Reads the tokenizer:
    to be called off the event loop."""
    return LlamaFamily(checkpoint)

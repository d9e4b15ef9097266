from pathlib import Path

import pytest

from models.grammar.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def vocabulary(tiny: Path) -> Vocabulary:
    """A token for each byte (not in their order), and 256 to 258 for markers."""
    return Vocabulary(tiny)

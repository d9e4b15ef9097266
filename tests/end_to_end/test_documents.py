"""A real model reads PDFs that the official SDK sends."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.support.pdfs import document, drawn, handed, pdf
from tests.support.running import Running, real_service

NOTE = document(
    pdf(drawn("Blank."), drawn("The code word of the safe is marmalade.")), title="note.pdf"
)
QUESTION: Any = {"type": "text", "text": "What is the code word of the safe?"}


@pytest.fixture(scope="module")
def service(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with real_service(qwen, tmp_path_factory.mktemp("data")) as running:
        yield running


def asking(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "model": "qwen2.5-coder-0.5b-instruct",
        "max_tokens": 16,
        "messages": messages,
        "extra_body": {"temperature": 0},
        **more,
    }


def test_a_question_about_a_pdf_is_answered_from_it(older: anthropic.Anthropic) -> None:
    request = asking([{"role": "user", "content": [NOTE, QUESTION]}])
    message = older.messages.create(**request)
    assert "marmalade" in message.content[0].text
    count = older.messages.count_tokens(model=request["model"], messages=request["messages"])
    assert count.input_tokens == message.usage.input_tokens


def test_a_pdf_that_a_tool_has_read_is_told_of_in_a_stream(newer: anthropic.Anthropic) -> None:
    messages = handed(NOTE)
    messages[-1]["content"].append(QUESTION)
    with newer.messages.stream(**asking(messages)) as stream:
        assert "marmalade" in stream.get_final_text()


def test_the_sdk_raises_what_is_wrong_with_a_pdf(newer: anthropic.Anthropic) -> None:
    encoded = base64.b64encode(b"%PDF-1.7").decode()
    broken: Any = {"type": "base64", "media_type": "application/pdf", "data": encoded}
    content: Any = [{"type": "document", "source": broken}]
    with (
        pytest.raises(anthropic.BadRequestError, match="the PDF is damaged"),
        newer.messages.stream(**asking([{"role": "user", "content": content}])),
    ):
        pass

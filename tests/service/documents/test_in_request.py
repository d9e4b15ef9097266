"""How the texts of documents come into a request."""

from collections.abc import Callable
from typing import Any

import pytest

from service.documents.in_request import unread_sources, with_texts
from service.wire.requests import MessagesRequest
from service.wire.validation import validate
from tests.support.messages import body
from tests.support.pdfs import asked, document, handed, plain


@pytest.mark.parametrize("conversation", [asked, handed])
def test_each_text_is_where_its_document_was(conversation: Callable[..., list[Any]]) -> None:
    def request(*blocks: dict[str, Any]) -> MessagesRequest:
        return validate(body(messages=conversation(*blocks)), MessagesRequest)

    given = request(document(b"a", title="A"), plain("b"), document(b"c"))
    texts = {path: path for path in unread_sources(given)}
    first, last = texts
    assert first.endswith(".0.source")
    assert last.endswith(".2.source")
    wanted = request(plain(first, title="A"), plain("b"), plain(last))
    assert with_texts(given, texts).as_sent() == wanted.as_sent()
    assert unread_sources(given).keys() == texts.keys()  # it is as it was


def test_lists_are_copied_once_for_all_their_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[object] = []
    copy = MessagesRequest.model_copy

    def counted(self: MessagesRequest, **more: Any) -> MessagesRequest:
        copies.append(self)
        return copy(self, **more)

    monkeypatch.setattr(MessagesRequest, "model_copy", counted)
    given = validate(body(messages=asked(*[document(b"a")] * 100)), MessagesRequest)
    told = with_texts(given, dict.fromkeys(unread_sources(given), "a"))
    assert not unread_sources(told)
    assert len(copies) == 1

"""Documents and search results, over HTTP: what the model is shown, and what is refused."""

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tokenizers import Tokenizer

from tests.service.documents.encrypted import LOCKED, OPEN
from tests.support import pdfs
from tests.support.batches import create_batch, results
from tests.support.cached import counted, total
from tests.support.lives import until
from tests.support.messages import body, events_of
from tests.support.pdfs import asked, document, drawn, handed, pdf, plain, sourced
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

PDF = pdf(drawn("one", "two"), b"", drawn("three"))
TEXT = "[Page 1]\none\ntwo\n\n[Page 2]\n\n[Page 3]\nthree"
SOURCE = "messages.0.content.0.source"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3")


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def shown(service: Running, model: Path, client: httpx.Client) -> Any:
    """What the model is shown of a request."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def shown(messages: list[Any]) -> str:
        response = client.post("/v1/messages", json=body(messages=messages)).raise_for_status()
        run = response.headers["mererun-run"]
        (record,) = service.data_dir.rglob(f"{run}/prompt.json")
        ids = json.loads(record.read_text())["ids"]
        assert total(response.json()["usage"]) == len(ids)
        assert counted(client, body(messages=messages)) == len(ids)
        return tokenizer.decode(ids, skip_special_tokens=False)

    return shown


@pytest.mark.parametrize("conversation", [asked, handed])
def test_a_pdf_is_its_title_context_and_pages_in_order(shown: Any, conversation: Any) -> None:
    prompt = shown(conversation(document(PDF, title="a.pdf", context="From mail.")))
    assert f"a.pdf\nFrom mail.\n{TEXT}" in prompt
    assert prompt == shown(conversation(plain(TEXT, title="a.pdf", context="From mail.")))


def test_a_pdf_beside_the_result_of_a_tool_is_read(shown: Any) -> None:
    messages = handed({"type": "text", "text": "PDF file read: a.pdf (12KB)"})
    messages[-1]["content"].append(
        document(PDF, title="a.pdf", cache_control={"type": "ephemeral"})
    )
    assert f"a.pdf\n{TEXT}" in shown(messages)


def test_what_a_pdf_can_say_wrong_is_cleaned(shown: Any) -> None:
    odd = pdf(drawn("hyphe-", "nated"), drawn("ac"), font=b"/ToUnicode 4 0 R")
    assert "[Page 2]\n\ufffdC<" in shown(asked(document(odd))).replace("\n\nWhat", "<")
    split = pdf(drawn("hyphe-", "nated"), box=b"9 9 1e9 nan", count=10**9)
    assert "[Page 1]\nhyphe-nated\n" in shown(asked(document(split)))


def test_what_is_written_in_fields_and_notes_is_read_with_their_page(shown: Any) -> None:
    field = b"/Subtype /Widget /F 4 /FT /Tx /T (name) /V (Ada)"
    note = b"/Subtype /FreeText /F 4 /Contents (seen) /AP << /N 6 0 R >>"
    link = b"/Subtype /Link"
    appearance = (
        b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
    )
    for notes, text in (([field], "Ada"), ([note], "seen"), ([link, note, field], "seen Ada")):
        filled = pdf(drawn("Name:"), drawn("seen"), pages=1, content=appearance, notes=notes)
        assert f"[Page 1] Name: {text} What" in " ".join(shown(asked(document(filled))).split())


@pytest.mark.parametrize("media_type", ["APPLICATION/PDF", " application/pdf; charset=binary"])
def test_media_types_are_compared_by_their_names(shown: Any, media_type: str) -> None:
    assert TEXT in shown(asked(document(PDF, media_type)))


def test_plain_text_may_come_as_base64(shown: Any) -> None:
    given = document("\ufeffZoë\nb".encode(), "text/plain")
    assert shown(asked(given)) == shown(asked(plain("Zoë\nb")))


@pytest.mark.parametrize("file", OPEN, ids=lambda file: file.stem)
def test_a_pdf_that_only_its_owner_may_change_is_read(shown: Any, file: Path) -> None:
    assert "[Page 1]\nwhat was locked" in shown(asked(document(file.read_bytes())))


@pytest.mark.parametrize("file", LOCKED, ids=lambda file: file.stem)
def test_a_pdf_with_a_password_is_refused(client: httpx.Client, file: Path) -> None:
    message = _refused(client, handed(document(file.read_bytes())))
    assert message == (
        "messages.2.content.0.content.0.source: the PDF is password protected; send it without a"
        " password"
    )


@pytest.mark.parametrize("name", pdfs.HOSTILE)
def test_a_pdf_that_cannot_be_read_is_refused_and_the_next_is_read(
    client: httpx.Client, name: str
) -> None:
    build, reason = pdfs.HOSTILE[name]
    request = body(messages=asked(document(build())))
    message = refused(client.post("/v1/messages/count_tokens", json=request))
    assert message.startswith(f"{SOURCE}: the PDF ")
    assert reason in message
    assert counted(client, body(messages=asked(document(PDF)))) > len(TEXT)


def test_pages_count_over_all_documents_of_a_request(client: httpx.Client) -> None:
    half = document(pdf(pdfs.PAGE, pages=301))
    assert _refused(client, asked(half, half)) == (
        "messages.0.content.1.source: with this PDF the request has more than 600 pages; send fewer"
    )


ENCODED = base64.b64encode(PDF).decode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "it is empty"),
        (f"{ENCODED[:76]}\n{ENCODED[76:]}", "it has line breaks or spaces in it"),
        (f"data:application/pdf;base64,{ENCODED}", "it begins like a data URL"),
        (base64.urlsafe_b64encode(b"%PDF-\xff\xff\xff").decode(), "it is of the URL-safe alphabet"),
        (
            base64.b64encode(PDF + b" " * (len(PDF) % 3 == 0)).decode().rstrip("="),
            "it is cut short",
        ),
        (f"QQ=={ENCODED}", "it goes on after its padding"),
        ("%PDF!1.7", "it has characters that are not base64"),
        ("é" * 8, "it has characters that are not base64"),
    ],
)
def test_base64_is_strict(client: httpx.Client, data: str, reason: str) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    message = _refused(client, asked(sourced(source)))
    assert message.startswith(f"{SOURCE}.data: {reason}")
    assert message.endswith("; send the plain base64 of the file's bytes")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (document(PDF, "text/plain"), "said to be text/plain, and is a PDF"),
        (plain(PDF.decode("latin-1")), "said to be text/plain, and is a PDF"),
        (plain(ENCODED), "said to be text/plain, and is a PDF"),
        (document(b"\n" + PDF, "text/plain"), "said to be text/plain, and is a PDF"),
        (document(b"\xef\xbb\xbf" + PDF, "Text/Plain"), "said to be text/plain, and is a PDF"),
        (plain("\n\ufeff" + PDF.decode("latin-1")), "said to be text/plain, and is a PDF"),
        (plain(f"\n{ENCODED}"), "said to be text/plain, and is a PDF"),
        (document(b"\x7fELF\2\0", "text/plain"), "said to be text/plain, and is binary"),
        (document(b"PK\3\4\0", "text/plain"), "said to be text/plain, and is binary"),
        (plain("PK\3\4\0"), "said to be text/plain, and is binary"),
        (document(b"Dear all"), "said to be application/pdf, and is no PDF"),
        (document(b"a\xff", "text/plain"), "is not UTF-8 (at byte 1)"),
        (document(b"\x89PNG", "image/png"), "of the type 'image/png' are not read"),
        (
            sourced({"type": "url", "url": "https://example.org/a.pdf"}),
            "this server reads no documents from URLs",
        ),
    ],
)
def test_what_is_not_what_it_is_said_to_be_is_refused(
    client: httpx.Client, block: dict[str, Any], reason: str
) -> None:
    message = _refused(client, asked(block))
    assert message.startswith(SOURCE)
    assert reason in message


def test_where_urls_are_allowed_they_do_not_lead_to_this_machine(
    model: Path, tmp_path: Path
) -> None:
    with scripted_service(model, tmp_path, allow_document_urls=True) as open_minded:
        own = sourced({"type": "url", "url": f"{open_minded.url}/healthz"})
        with open_minded.client() as client:
            assert "leads to an address that is not public" in _refused(client, asked(own))


SEARCHED = {
    "type": "search_result",
    "source": "https://example.org",
    "title": "A page",
    "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}],
    "citations": {"enabled": False},
}


@pytest.mark.parametrize("conversation", [asked, handed])
def test_a_search_result_is_its_title_source_and_texts(shown: Any, conversation: Any) -> None:
    assert "A page\nhttps://example.org\nfirst\n\nsecond" in shown(conversation(SEARCHED))


@pytest.mark.parametrize("block", [document(PDF), plain("a"), SEARCHED])
def test_citations_are_refused_by_name(client: httpx.Client, block: dict[str, Any]) -> None:
    message = _refused(client, handed({**block, "citations": {"enabled": True}}))
    assert message == (
        "messages.2.content.0.content.0.citations: tiny cannot cite reliably; leave citations out,"
        ' or send {"enabled": false}'
    )


def test_a_pdf_in_a_batch_is_read_and_a_locked_one_fails_alone(service: Running) -> None:
    both = document(PDF), document(LOCKED[0].read_bytes())
    batch = create_batch(service, *(body(messages=asked(each)) for each in both))
    good, locked = results(service, batch)
    assert good["type"] == "succeeded"
    assert "password protected" in locked["error"]["error"]["message"]


def test_a_process_that_reads_a_pdf_ends_with_its_request(
    service: Running, client: httpx.Client
) -> None:
    slow = pdf(pdfs.packed(pdfs.OPERATORS), content=pdfs.PACKED, pages=100)
    request = body(messages=asked(document(slow)))
    with service.client() as hasty, ThreadPoolExecutor() as threads:
        reading = threads.submit(hasty.post, "/v1/messages", json=request, timeout=3)
        assert until(lambda: _readers(service))
        with pytest.raises(httpx.ReadTimeout):
            reading.result()
    assert until(lambda: not _readers(service))
    assert counted(client, body(messages=asked(document(PDF)))) > len(TEXT)


def test_many_requests_at_once_have_their_own_documents_read_two_at_a_time(
    service: Running, client: httpx.Client
) -> None:
    def count(number: int) -> int:
        return counted(client, body(messages=asked(document(pdf(drawn("x" * number))))))

    most = 0
    with ThreadPoolExecutor(8) as threads:
        counting = [threads.submit(count, number) for number in range(1, 9)]
        while not all(each.done() for each in counting):
            most = max(most, len(_readers(service)))
            time.sleep(0.005)
    assert most in (1, 2)
    alone = [
        counted(client, body(messages=asked(plain(f"[Page 1]\n{'x' * n}")))) for n in range(1, 9)
    ]
    assert [each.result() for each in counting] == alone


def test_streams_are_answered_too(client: httpx.Client) -> None:
    events = events_of(client, body(messages=asked(document(PDF))))
    usage = events[0]["message"]["usage"]
    assert usage["input_tokens"] == counted(client, body(messages=asked(plain(TEXT))))


def _refused(client: httpx.Client, messages: list[Any]) -> str:
    """The message with which both ways to send it are refused."""
    counting = refused(client.post("/v1/messages/count_tokens", json=body(messages=messages)))
    assert refused(client.post("/v1/messages", json=body(messages=messages))) == counting
    return counting


def _readers(service: Running) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for each in psutil.Process(service.process.pid).children():
        try:
            if "service.documents.pdf_child" in each.cmdline():
                found.append(each)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            pass
    return found

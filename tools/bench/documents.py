"""What it takes to read long PDFs, and what others feel of it."""

import json
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from statistics import median

import anyio
import psutil

from models.catalog import Checkpoint
from service.documents.limits import MOST_PAGES
from service.documents.pdf_texts import PdfTexts
from tests.support.pdfs import asked, document, drawn, pdf
from tools.bench.client import Client
from tools.bench.figure import Bar, Figure, centre, p99
from tools.bench.polling import POLLED, polling
from tools.bench.prompts import words
from tools.bench.resident import watching
from tools.bench.services import Places, scripted

_MIB = 1 << 20
_LINES = 45  # of a page, each of 10 words


def documents(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """PDFs of the most pages that are read: each alone, and several in a service."""
    times = 2 if quick else 10
    pages = 20 if quick else MOST_PAGES
    files = [_pdf(pages, seed) for seed in range(times)]
    texts = PdfTexts()
    new = [1000 * _seconds(texts, each) for each in files]
    again = [1000 * _seconds(texts, files[-1]) for _ in files]
    characters = len(anyio.run(texts.text, files[-1]).text)
    size = (
        f"{pages} pages, {characters / 1e6:.2g} million characters, {len(files[0]) / _MIB:.1f} MiB"
    )
    yield Figure(
        "a long PDF, read", median(new), "ms", f"CPU, its process included; {size}: {centre(new)}",
        Bar("<=", 3000),
    )  # fmt: skip
    yield Figure("the same PDF again", median(again), "ms", f"CPU; from memory: {centre(again)}")
    with scripted(checkpoint, places.disk) as service:
        client = Client(service.url)
        _read(client, files[0])
        with (
            polling(service.url) as waits,
            watching(psutil.Process(service.process.pid)) as resident,
        ):
            started = time.perf_counter()
            for each in files[1:]:
                _read(client, each)
            seconds = time.perf_counter() - started
        with polling(service.url) as idle:
            time.sleep(seconds)
    counted = f"while {len(files) - 1} others are read; {size}"
    yield Figure(
        "memory for long PDFs", (max(resident) - resident[0]) / _MIB, "MiB",
        f"the most over {resident[0] / _MIB:.0f} MiB after the first one, {counted}", Bar("<=", 64),
    )  # fmt: skip
    yield Figure(
        "longest wait while long PDFs are read", max(waits), "ms",
        f"{POLLED}, {len(waits)} times, {counted}; p99 {p99(waits):.3g} ms", Bar("<", 50),
    )  # fmt: skip
    yield Figure(
        "longest wait while idle", max(idle), "ms",
        f"{POLLED}, {len(idle)} times: noise; p99 {p99(idle):.3g} ms",
    )  # fmt: skip


def _pdf(pages: int, seed: int) -> bytes:
    return pdf(
        *(
            drawn(*(words(10, (seed * pages + page) * _LINES + line) for line in range(_LINES)))
            for page in range(pages)
        )
    )


def _seconds(texts: PdfTexts, file: bytes) -> float:
    """Of CPU, here and in the process that reads it."""
    started = _used()
    anyio.run(texts.text, file)
    return _used() - started


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _read(client: Client, file: bytes) -> None:
    """Have the service read it, and refuse the request before it counts the text."""
    open_call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    messages = [*asked(document(file)), {"role": "assistant", "content": [open_call]}]
    body = json.dumps({"model": "claude-bench", "messages": messages}).encode()
    with suppress(RuntimeError):
        client.post("/v1/messages/count_tokens", body)

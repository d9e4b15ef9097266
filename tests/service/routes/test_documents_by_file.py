"""Documents that are uploaded once and named by their ids."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic

from service.auth import add_key
from tests.support.batches import create_batch, results
from tests.support.fake_language import write_fake_checkpoint
from tests.support.lives import Connection
from tests.support.messages import body, message_of, scripted
from tests.support.pdfs import drawn, pdf
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service
from tests.support.tiny_checkpoint import byte_tokenizer

FILES, MESSAGES, COUNT = "/v1/files", "/v1/messages", "/v1/messages/count_tokens"
VERSIONS = ["2023-06-01", "2026-10-21"]
TEXT = "The moon is made of blue cheese."

PromptOf = Callable[[httpx.Response], str]


@pytest.fixture
def files(client: httpx.Client) -> Iterator[Callable[..., str]]:
    """Uploads a file, and returns its id; in the end all files are gone."""

    def upload(content: bytes, name: str = "moon.txt", **more: Any) -> str:
        answer = client.post(FILES, files={"file": (name, content)}, data=more)
        return answer.raise_for_status().json()["id"]

    yield upload
    for file in client.get(FILES).json()["data"]:
        client.delete(f"{FILES}/{file['id']}")


def document(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "file", "file_id": id}, **more}


def asking(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    question = {"type": "text", "text": "What is it made of?"}
    return body(messages=[{"role": "user", "content": [*blocks, question]}], **more)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["moon.txt", "moon.pdf"])
def test_the_model_reads_it(
    client: httpx.Client, files: Callable[..., str], prompt_of: PromptOf, name: str, version: str
) -> None:
    id = files(pdf(drawn(TEXT)) if name.endswith("pdf") else TEXT.encode(), name)
    request, headers = asking(document(id, title="Moon")), {"anthropic-version": version}
    answer = client.post(MESSAGES, json=request, headers=headers)
    prompt = prompt_of(answer)
    assert "Moon" in prompt
    assert TEXT in prompt
    del request["max_tokens"]
    count = client.post(COUNT, json=request, headers=headers).json()["input_tokens"]
    assert count == answer.json()["usage"]["input_tokens"]


def test_it_is_as_if_it_had_been_sent(
    client: httpx.Client, files: Callable[..., str], prompt_of: PromptOf
) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": TEXT}
    sent = client.post(MESSAGES, json=asking({"type": "document", "source": source}))
    named = client.post(MESSAGES, json=asking(document(files(TEXT.encode()))))
    assert prompt_of(named) == prompt_of(sent)


def test_a_tool_may_have_found_it(tmp_path: Path) -> None:
    model = write_fake_checkpoint(tmp_path / "tiny")
    with scripted_service(model, tmp_path / "data") as able, able.client() as client:
        file = client.post(FILES, files={"file": ("moon.txt", TEXT.encode())}).json()
        call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
        result = {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [document(file["id"])],
        }
        messages = [
            {"role": "user", "content": "Read it."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        tools = [{"name": "read", "input_schema": {"type": "object"}}]
        client.post(MESSAGES, json=body(messages=messages, tools=tools)).raise_for_status()
    (prompt,) = able.data_dir.glob("runs/*/*/*/*/prompt.json")
    assert TEXT in byte_tokenizer().decode(json.loads(prompt.read_text())["ids"])


def test_both_clients_of_the_sdk_name_it(service: Running) -> None:
    client = Anthropic(base_url=service.url, api_key="any", max_retries=0)
    file = client.beta.files.upload(file=("moon.txt", TEXT.encode()))
    request: dict[str, Any] = {**asking(document(file.id)), "max_tokens": 9}
    whole = client.messages.create(**request)
    with client.beta.messages.stream(**request, betas=["files-api-2025-04-14"]) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].type == streamed.content[0].type == "text"
    assert whole.usage.input_tokens == streamed.usage.input_tokens
    client.files.delete(file.id)


def test_the_record_has_its_id_and_digest(
    service: Running, client: httpx.Client, files: Callable[..., str]
) -> None:
    id = files(TEXT.encode())
    expected = {
        "type": "file",
        "file_id": id,
        "sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
    }
    answer = client.post(MESSAGES, json=asking(document(id))).raise_for_status()
    batch = create_batch(service, asking(document(id)))
    assert results(service, batch)[0]["type"] == "succeeded"
    client.delete(f"{FILES}/{id}").raise_for_status()
    runs = [answer.headers["mererun-run"], service.runs()[0]["id"]]
    for run in runs:
        (record,) = service.data_dir.glob(f"runs/*/*/*/{run}/request.json")
        kept = json.loads(record.read_text())
        assert kept["messages"][0]["content"][0]["source"] == expected


def test_an_answer_goes_on_when_its_file_is_deleted(
    service: Running, client: httpx.Client, files: Callable[..., str]
) -> None:
    id = files(TEXT.encode())
    request = scripted(say="abcdef", step_ms=20)
    request["messages"].insert(0, {"role": "user", "content": [document(id)]})
    request["messages"].insert(1, {"role": "assistant", "content": "Read."})
    with Connection(service.url, {**request, "stream": True}) as connection:
        connection.read_until(b"content_block_delta")
        assert client.delete(f"{FILES}/{id}").status_code == 200
        message = message_of(connection.read_to_end())
    assert message["content"] == [{"type": "text", "text": "abcdef"}]
    again = client.post(MESSAGES, json=request)
    assert refused(again, 404, "not_found_error").startswith("messages.0.content.0.source.file_id:")


def test_a_thread_reads_it_as_long_as_it_is_there(
    client: httpx.Client, files: Callable[..., str], prompt_of: PromptOf
) -> None:
    id = files(TEXT.encode())
    first = client.post(MESSAGES, json=asking(document(id), thread={"type": "create"}))
    said = prompt_of(first)

    def go_on(after: httpx.Response) -> httpx.Response:
        thread = {"type": "continue", "previous_message_id": after.json()["id"]}
        return client.post(MESSAGES, json=body("And the sun?", thread=thread))

    second = go_on(first)
    assert prompt_of(second).startswith(said)
    client.delete(f"{FILES}/{id}").raise_for_status()
    gone = refused(go_on(second), 404, "not_found_error")
    assert gone.startswith("thread.messages.0.content.0.source.file_id:")


def test_a_batch_whose_file_is_gone_has_its_error(
    service: Running, files: Callable[..., str]
) -> None:
    id = files(TEXT.encode())
    batch = create_batch(service, asking(document("file_gone")), asking(document(id)))
    lost, read = results(service, batch)
    assert lost["error"]["error"]["type"] == "not_found_error"
    assert lost["error"]["error"]["message"].startswith("messages.0.content.0.source.file_id:")
    assert read["type"] == "succeeded"


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\x89PNG", "moon.png"),
        (b"no type at all", "moon"),
        (b"\xff\xfe", "moon.txt"),
        (pdf(drawn("x")), "moon.txt"),
        (b"no pdf", "moon.pdf"),
    ],
)
def test_what_is_no_document_is_refused_by_its_place(
    client: httpx.Client, files: Callable[..., str], content: bytes, name: str, path: str
) -> None:
    request = asking(document(files(content, name)))
    if path == COUNT:
        del request["max_tokens"]
    assert refused(client.post(path, json=request)).startswith("messages.0.content.0.source")


def test_a_file_too_large_for_a_document_is_refused_unread(
    client: httpx.Client, files: Callable[..., str]
) -> None:
    id = files(bytes((32 << 20) + 1))
    assert "32 MiB" in refused(client.post(MESSAGES, json=asking(document(id))))


def test_a_file_whose_time_is_over_is_told_so(
    service: Running, client: httpx.Client, files: Callable[..., str]
) -> None:
    id = files(TEXT.encode(), expires_in_seconds=3600)
    with closing(sqlite3.connect(service.data_dir / "mererun.db", isolation_level=None)) as db:
        db.execute("UPDATE files SET expires_at = 1 WHERE id = ?", [id])
    for answer in (
        client.post(MESSAGES, json=asking(document(id))),
        client.get(f"{FILES}/{id}/content"),
    ):
        assert refused(answer, 404, "not_found_error")
        assert answer.json()["error"]["details"] == {"error_code": "file_expired"}
    assert client.get(f"{FILES}/{id}").json()["expires_at"].startswith("1970-01-01")


def test_a_file_of_another_key_is_unknown(tiny: Path, tmp_path: Path) -> None:
    keys = [add_key(tmp_path / "keys")[1] for _ in range(2)]
    with scripted_service(tiny, tmp_path / "data", api_key_file=str(tmp_path / "keys")) as service:
        own, other = (service.client(headers={"x-api-key": key}) for key in keys)
        with own, other:
            id = own.post(FILES, files={"file": ("a.txt", b"secret")}).json()["id"]
            assert own.post(MESSAGES, json=asking(document(id))).status_code == 200
            for unknown in (id, "file_none", "../../thinking.key", ""):
                answer = other.post(MESSAGES, json=asking(document(unknown)))
                said = refused(answer, 404, "not_found_error")
                assert said.startswith("messages.0.content.0.source.file_id:")

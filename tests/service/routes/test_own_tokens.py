"""The prompt of a conversation begins with the last one and what the model answered to it."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from models.catalog import inspect
from service.auth import add_key
from storage.database import Database
from storage.retention import Keep, prune
from tests.end_to_end.written_answers import Marker, ids_of
from tests.support.batches import create_batch, results
from tests.support.lives import Connection, assert_stops_well, end, ended, until
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

CALL, CALL_END = Marker("<tool_call>"), Marker("</tool_call>")
THINK, THINK_END = Marker("<think>"), Marker("</think>")
# As no template writes it.
CALLING: Sequence[str] = (
    *(THINK, "hm ", THINK_END, "So:\n\n\n", CALL),
    *('{"arguments":{"b" :2.0, "a":"x"},"name":"run"}', CALL_END, "\n"),
)
SAYING: Sequence[str] = (THINK, THINK_END, "\n\n\n\nDone.")
TOOLS = [{"name": "run", "description": "Runs.", "input_schema": {"type": "object"}}]
ASKED: list[Any] = [{"role": "user", "content": "Run it."}]


@dataclass
class Talk:
    """A client of a service whose model says what it is told to."""

    service: Running
    model: Path
    script: Path
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def says(self, pieces: Sequence[str], **script: Any) -> list[int]:
        ids = ids_of(inspect(self.model), pieces)
        self.script.write_text(json.dumps({"ids": ids, **script}))
        return ids

    def asks(self, messages: Sequence[Any], **more: Any) -> tuple[dict[str, Any], list[int]]:
        """The answer, and the tokens of the prompt, which are as many as were counted."""
        request = request_of(messages, **more)
        counted = {key: each for key, each in request.items() if key != "max_tokens"}
        with self.service.client(headers=self.headers) as client:
            count = client.post("/v1/messages/count_tokens", json=counted).raise_for_status().json()
            answer = client.post("/v1/messages", json=request)
        assert answer.status_code == 200, answer.text
        prompt = self.prompt_of(answer.headers["mererun-run"])
        usage = answer.json()["usage"]
        told = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert len(prompt) == count["input_tokens"] == sum(usage[each] for each in told)
        return answer.json(), prompt

    def prompt_of(self, run: str) -> list[int]:
        (file,) = self.service.data_dir.glob(f"runs/*/*/*/{run}/prompt.json")
        return json.loads(file.read_text())["ids"]

    def goes_on(self, messages: Sequence[Any]) -> list[int]:
        """The prompt of what comes next."""
        self.says(SAYING)
        return self.asks(messages)[1]


def request_of(messages: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {
        "model": "claude-test",
        "max_tokens": 500,
        "tools": TOOLS,
        "thinking": {"type": "adaptive"},
        "messages": messages,
        **more,
    }


def after(messages: Sequence[Any], content: Any, *, text: str = "on") -> list[Any]:
    results = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "done"}
        for each in content
        if each["type"] == "tool_use"
    ]
    return [
        *messages,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [*results, {"type": "text", "text": text}]},
    ]


def begins(prompt: Sequence[int], *parts: Sequence[int]) -> bool:
    beginning = [token for each in parts for token in each]
    return list(prompt[: len(beginning)]) == beginning


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3")


@pytest.fixture(scope="module")
def talk(
    model: Path, keys: tuple[Path, str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Talk]:
    folder = tmp_path_factory.mktemp("scripted")
    script = folder / "script.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPT_FILE", str(script))
        with scripted_service(
            model, folder / "data", api_key_file=str(keys[0]), drain_seconds=0.1
        ) as service:
            service.headers = {"x-api-key": keys[1]}
            yield Talk(service, model, script)
            assert_stops_well(service)


def test_a_conversation_goes_on_in_the_models_own_tokens(talk: Talk) -> None:
    messages, computed = ASKED, list[int]()
    for pieces in (CALLING, CALLING, SAYING, CALLING):
        ids = talk.says(pieces)
        answer, prompt = talk.asks(messages)
        assert begins(prompt, computed)
        computed = [*prompt, *ids]
        messages = after(messages, answer["content"])
    assert begins(talk.goes_on(messages), computed)


def test_spelling_and_marks_are_no_changes(talk: Talk) -> None:
    ids = talk.says(CALLING)
    answer, prompt = talk.asks(ASKED)
    thinking, text, call = answer["content"]
    assert call["input"] == {"b": 2.0, "a": "x"}
    again = [
        {"signature": thinking["signature"], "thinking": "hm", "type": "thinking"},
        {**text, "citations": None},
        {"type": "text", "text": ""},
        {**call, "input": {"a": "x", "b": 2}, "cache_control": {"type": "ephemeral"}},
    ]
    assert begins(talk.goes_on(after(ASKED, again)), prompt, ids)
    split = [
        *ASKED,
        {"role": "assistant", "content": again[:2]},
        *after([], again[2:]),
    ]
    assert begins(talk.goes_on(split), prompt, ids)


@pytest.mark.parametrize("what", ["text", "input", "id", "no thinking", "before", "more"])
def test_what_was_changed_is_written_from_its_blocks(talk: Talk, what: str) -> None:
    ids = talk.says(CALLING)
    answer, prompt = talk.asks(ASKED)
    thinking, text, call = answer["content"]
    asked = ASKED
    match what:
        case "text":
            text = {**text, "text": "so:"}
        case "input":
            call = {**call, "input": {"b": 2.0, "a": "y"}}
        case "id":
            call = {**call, "id": "toolu_other"}
        case "no thinking":
            thinking = {**thinking, "signature": "another's"}
        case "more":
            text = {**text, "text": f"{text['text']} "}
        case _:
            asked = [{"role": "user", "content": "Run it!"}]
    following = talk.goes_on(after(asked, [thinking, text, call]))
    assert not begins(following, prompt, ids)
    # And is the same the next time.
    assert following == talk.goes_on(after(asked, [thinking, text, call]))


def test_another_key_has_other_answers(talk: Talk, keys: tuple[Path, str, str]) -> None:
    ids = talk.says(CALLING)
    answer, prompt = talk.asks(ASKED)
    other = Talk(talk.service, talk.model, talk.script, {"x-api-key": keys[2]})
    messages = after(ASKED, answer["content"])
    assert not begins(other.goes_on(messages), prompt, ids)
    assert begins(talk.goes_on(messages), prompt, ids)


def test_the_same_words_in_two_places_have_their_own_tokens(talk: Talk) -> None:
    first = talk.says(["ok"])
    answer, prompt = talk.asks(ASKED)
    messages = after(ASKED, answer["content"])
    second = talk.says([THINK, " ", THINK_END, "\n\nok"])
    again, longer = talk.asks(messages)
    assert again["content"] == answer["content"]
    assert begins(longer, prompt, first)
    assert begins(talk.goes_on(after(messages, again["content"])), longer, second)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_answers_are_known_to_the_next_service(talk: Talk, how: str) -> None:
    ids = talk.says(CALLING)
    answer, prompt = talk.asks(ASKED)
    end(talk.service, how)
    assert begins(talk.goes_on(after(ASKED, answer["content"])), prompt, ids)


def test_answers_go_with_their_runs(talk: Talk) -> None:
    ids = talk.says(CALLING)
    answer, prompt = talk.asks(ASKED)
    messages = after(ASKED, answer["content"])
    assert talk.service.stop() == 0
    anyio.run(forget, talk.service.data_dir)
    with closing(sqlite3.connect(talk.service.data_dir / "mererun.db")) as database:
        assert database.execute("SELECT count(*) FROM answers").fetchone() == (0,)
    talk.service.start()
    assert not begins(talk.goes_on(messages), prompt, ids)


async def forget(data_dir: Path) -> None:
    async with Database.open(data_dir / "mererun.db") as db:
        await prune(db, data_dir, Keep(days=0))


@pytest.mark.parametrize(
    "cut",
    [
        {"max_tokens": 10},
        {"stop_sequences": ["there"]},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ],
    ids=str,
)
def test_an_answer_that_was_cut_is_written_from_its_blocks(talk: Talk, cut: Any) -> None:
    ids = talk.says(["So: there\n\n\n", *CALLING[4:], *CALLING[4:]])
    answer, prompt = talk.asks(ASKED, **cut)
    assert not begins(talk.goes_on(after(ASKED, answer["content"])), prompt, ids[:14])


def test_a_batch_s_answer_is_known(talk: Talk) -> None:
    ids = talk.says(CALLING)
    (result,) = results(talk.service, create_batch(talk.service, request_of(ASKED)))
    prompt = talk.prompt_of(talk.service.runs()[0]["id"])
    assert begins(talk.goes_on(after(ASKED, result["message"]["content"])), prompt, ids)


def test_an_answer_that_was_interrupted_and_resumed_is_known(talk: Talk, tmp_path: Path) -> None:
    ids = talk.says(CALLING, hold_at=20, hold_file=str(tmp_path / "go"))
    service = talk.service
    with Connection(service.url, request_of(ASKED, stream=True), **service.headers) as asking:
        run = asking.run_id()
        asking.read_until(b"signature_delta")
        end(service, "kill")
    assert ended(service, run)["state"] == "interrupted"
    (tmp_path / "go").touch()
    with service.client() as client:
        client.post(f"/v1/runs/{run}/resume").raise_for_status()
    until(lambda: service.run(run)["state"] == "succeeded")
    file = service.data_dir / service.run(run)["record"] / "response.json"
    content = json.loads(file.read_text())["message"]["content"]
    assert begins(talk.goes_on(after(ASKED, content)), talk.prompt_of(run), ids)


def test_without_content_answers_are_known_as_long_as_the_service_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.json"
    monkeypatch.setenv("SCRIPT_FILE", str(script))
    with scripted_service(model, tmp_path / "data", record_content=False) as service:
        talk = Talk(service, model, script)
        talk.says(CALLING)

        def counted(messages: Any) -> tuple[Any, int]:
            with service.client() as client:
                answer = client.post("/v1/messages", json=request_of(messages))
            assert answer.status_code == 200, answer.text
            return answer.json()["content"], answer.json()["usage"]["input_tokens"]

        content, _ = counted(ASKED)
        messages = after(ASKED, content)
        known = counted(messages)[1]
        end(service, "stop")
        assert counted(messages)[1] != known
        with closing(sqlite3.connect(service.data_dir / "mererun.db")) as database:
            assert database.execute("SELECT count(*) FROM answers").fetchone() == (0,)
        assert_stops_well(service)

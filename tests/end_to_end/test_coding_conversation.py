"""A whole coding conversation, in the words of each family: clients see no difference."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from models.catalog import Checkpoint, inspect
from models.conversation import Block, Thinking
from tests.end_to_end.coding_conversation import ANSWERS, QUESTION, RESULTS, TOOLS, shown
from tests.end_to_end.tiny_families import FAMILIES, Tiny
from tests.support.lives import assert_stops_well, ended, recorded_events, until
from tests.support.running import Running, scripted_service
from tests.support.wide_context import with_context

MAX_TOKENS = 4000


@dataclass
class Scripted:
    """A service that can be told what its model says next."""

    service: Running
    checkpoint: Checkpoint
    script: Path
    tiny: Tiny
    client: anthropic.Anthropic

    def will_say(self, answer: Sequence[Block], *, after_results: bool = False) -> list[int]:
        """The tokens of it."""
        ids = self.tiny.ids(self.checkpoint, answer, after_results=after_results)
        self.script.write_text(json.dumps({"ids": ids}))
        return ids


@pytest.fixture(scope="module", params=FAMILIES)
def scripted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scripted]:
    tiny = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("scripted")
    model = with_context(tiny.write(folder / "tiny"), 65_536)
    script = folder / "script.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPT_FILE", str(script))
        with scripted_service(model, folder / "data") as service, client_of(service) as client:
            yield Scripted(service, inspect(model), script, tiny, client)
            assert_stops_well(service)


def client_of(service: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=service.url,
        api_key="any",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(verify=False),  # see Running.client
        _strict_response_validation=True,
    )


@pytest.mark.parametrize(
    ("streamed", "thinks"), [(True, True), (False, True), (True, False)], ids=str
)
def test_a_coding_conversation_is_the_same_in_every_family(
    scripted: Scripted, streamed: bool, thinks: bool
) -> None:
    client = scripted.client
    answered = streamed_answer if streamed else whole_answer
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    computed: list[int] = []
    for place, (answer, results) in enumerate(zip(ANSWERS, RESULTS, strict=True)):
        says = [each for each in answer if thinks or not isinstance(each, Thinking)]
        ids = scripted.will_say(says, after_results=place > 0)
        request = asking(scripted, messages, thinks=thinks)
        counted = client.messages.count_tokens(**request)
        message, headers = answered(client, request)
        assert "mererun-ignored" not in headers
        assert content_of(message) == [shown(each) for each in says]
        assert message.stop_reason == ("tool_use" if results else "end_turn")
        assert message.usage.input_tokens == counted.input_tokens
        assert message.usage.output_tokens == len(ids) + 1
        prompt = prompt_ids(scripted.service, headers["mererun-run"])
        assert prompt[: len(computed)] == computed
        computed = prompt + ids
        calls = [each.id for each in message.content if each.type == "tool_use"]
        given = [
            {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": failed}
            for id, (text, failed) in zip(calls, results, strict=True)
        ]
        messages += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": given},
        ]


def test_an_agent_that_leaves_within_an_argument_frees_the_engine(
    scripted: Scripted, tmp_path: Path
) -> None:
    client = scripted.client
    request = asking(scripted, [{"role": "user", "content": QUESTION}])
    ids = scripted.will_say(ANSWERS[1])
    at = len(ids) // 2
    scripted.script.write_text(
        json.dumps({"ids": ids, "hold_at": at, "hold_file": str(tmp_path / "never")})
    )
    with client.messages.stream(**request, max_tokens=MAX_TOKENS) as stream:
        run = stream.response.headers["mererun-run"]
        until(lambda: tokens_recorded(scripted.service, run) == at)
    assert ended(scripted.service, run)["state"] == "cancelled"
    scripted.will_say(ANSWERS[0])
    message, _ = whole_answer(client, request)
    assert content_of(message) == [shown(each) for each in ANSWERS[0]]


def prompt_ids(service: Running, run: str) -> list[int]:
    (file,) = service.data_dir.glob(f"runs/*/*/*/{run}/prompt.json")
    return json.loads(file.read_text())["ids"]


def asking(scripted: Scripted, messages: list[Any], *, thinks: bool = True) -> dict[str, Any]:
    return {
        "model": scripted.checkpoint.id,
        "messages": messages,
        "tools": TOOLS,
        "thinking": {"type": "adaptive" if thinks else "disabled"},
    }


def whole_answer(client: anthropic.Anthropic, request: Any) -> tuple[Message, Any]:
    response = client.messages.with_raw_response.create(**request, max_tokens=MAX_TOKENS)
    return response.parse(), response.headers


def streamed_answer(client: anthropic.Anthropic, request: Any) -> tuple[Message, Any]:
    with client.messages.stream(**request, max_tokens=MAX_TOKENS) as stream:
        arguments: list[str] = []
        for event in stream:
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                arguments.append("")
            elif event.type == "input_json":
                arguments[-1] += event.partial_json
        message = stream.get_final_message()
        headers = stream.response.headers
    calls = [each.input for each in message.content if each.type == "tool_use"]
    assert [json.loads(each) for each in arguments] == calls
    return message, headers


def content_of(message: Message) -> list[dict[str, Any]]:
    """Without what is the message's own: its ids and signatures."""
    blocks = [each.model_dump(exclude_none=True) for each in message.content]
    for each in blocks:
        assert each.pop("id", "toolu_").startswith("toolu_")
        assert each.pop("signature", "mererun1.").startswith("mererun1.")
    return blocks


def tokens_recorded(service: Running, run: str) -> int:
    events = recorded_events(service, service.run(run), "tokens")
    return sum(len(each["ids"]) for each in events)

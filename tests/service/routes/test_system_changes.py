"""System messages that change tools, effort and what is said, from the official client."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from models.catalog import inspect
from models.families.prompt_tokens import PromptTokens
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

BETAS = [
    "mid-conversation-tool-changes-2026-07-01",
    "mid-conversation-output-config-2026-07-01",
    "mid-conversation-system-clear-at-2026-08-21",
    "inline-tools-2026-09-15",
]
READ: Any = {"name": "read_file", "input_schema": {"type": "object"}}
LATE: Any = {"name": "late_tool", "input_schema": {"type": "object"}}
NOTE: Any = {"role": "system", "content": "Only now.", "clear_at": "next_user_message"}
ADDED: Any = {"type": "tool_definition", "definition": LATE}
CHANGED: Any = {
    "role": "system",
    "content": [
        {"type": "tool_addition", "tool": ADDED},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read_file"}},
    ],
    "output_config": {"effort": "xhigh"},
}


class Asked:
    """A client of a service whose model has efforts, and the prompts that it gets."""

    def __init__(self, service: Running, model: Any) -> None:
        self._service = service
        self._bytes = PromptTokens(inspect(model)).token_bytes
        self.sdk = anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0)

    def prompts(self, *messages: Any, **more: Any) -> str:
        """The prompt of an answer, which is the same if it is streamed, and as long as counted."""
        request: dict[str, Any] = {
            "model": "claude-test",
            "messages": messages,
            "tools": [READ],
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low"},
            **more,
        }
        whole = self.sdk.beta.messages.with_raw_response.create(max_tokens=64, **request)
        with self.sdk.beta.messages.stream(max_tokens=64, **request) as stream:
            streamed = stream.get_final_message().usage.input_tokens
        counted = self.sdk.beta.messages.count_tokens(**request).input_tokens
        ids = self._ids(whole.headers["mererun-run"])
        assert len(ids) == whole.parse().usage.input_tokens == streamed == counted
        return b"".join(self._bytes[each] for each in ids).decode()

    def _ids(self, run: str) -> list[int]:
        (file,) = self._service.data_dir.glob(f"runs/*/*/*/{run}/prompt.json")
        return json.loads(file.read_text())["ids"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    model = write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3.8")
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield Asked(running, model)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("betas", [[], BETAS])
def test_tools_and_effort_change_from_there_on(asked: Asked, betas: list[str]) -> None:
    before = asked.prompts(user("a"), betas=betas)
    assert "read_file" in before
    assert "late_tool" not in before
    assert "Think little." in before
    after = asked.prompts(user("a"), CHANGED, user("b"), betas=betas)
    assert "read_file" not in after
    assert "late_tool" in after
    assert "Think much." in after


def test_a_text_for_now_is_gone_with_the_users_next_message(asked: Asked) -> None:
    answer = {"role": "assistant", "content": "b"}
    assert "Only now." in asked.prompts(user("a"), NOTE)
    later = asked.prompts(user("a"), NOTE, answer, user("c"))
    assert later == asked.prompts(user("a"), answer, user("c"))


def test_the_client_knows_why_a_change_is_refused(asked: Asked) -> None:
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "gone"}}
    with pytest.raises(anthropic.types.ToolReferenceUnresolvedError):
        asked.prompts(user("a"), {"role": "system", "content": [gone]})
    bash = {"type": "bash_20250124", "name": "bash"}
    tool = {"type": "tool_definition", "definition": bash}
    added = {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}
    with pytest.raises(anthropic.types.ToolNameConflictError):
        asked.prompts(user("a"), added, tools=[{**READ, "name": "bash"}])


def test_the_tool_runner_adds_and_removes_tools(asked: Asked) -> None:
    @anthropic.beta_tool
    def read_file() -> str:
        """Reads."""
        return "read"

    @anthropic.beta_tool
    def late_tool() -> str:
        """Is late."""
        return "late"

    runner = asked.sdk.beta.messages.tool_runner(
        model="claude-test",
        max_tokens=64,
        messages=[{"role": "user", "content": "a"}],
        tools=[read_file],
        thread=False,
        betas=BETAS,
    )
    runner.add_tools(late_tool)
    runner.remove_tools(read_file)
    (answer,) = list(runner)
    assert answer.stop_reason == "end_turn"

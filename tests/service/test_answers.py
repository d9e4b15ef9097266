"""What clients send back of an answer finds its tokens, whatever was in it."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalog import inspect
from models.families import family_of
from models.families.prompt_tokens import PromptTokens
from service import answers
from service.answers import Answers
from service.documents.documents import Documents
from service.documents.sources import Sources
from service.preparation import Preparation
from service.prompts import Prompt
from service.requests.served import Served
from service.scheduling.answer import Answer
from service.signatures import Signer
from service.threads import Threads
from service.wire.requests import MessagesRequest
from storage.answer_pieces import content_of
from storage.database import Database
from storage.files import Files
from storage.jobs import Jobs
from tests.end_to_end.written_answers import Marker
from tests.models.families.test_own_tokens import FAMILIES, RUN, START

TOOLS = [{"name": RUN.name, "description": RUN.description, "input_schema": RUN.schema}]
ASKED: list[Any] = [{"role": "user", "content": "hi"}]


@dataclass
class Model:
    """One served model without an engine."""

    preparation: Preparation
    answers: Answers
    tokens: PromptTokens
    stop: int
    has_tools: bool
    portal: BlockingPortal
    runs: int = 0

    def prompt(self, messages: Sequence[Any], **more: Any) -> tuple[MessagesRequest, Prompt]:
        request = {"model": "claude-x", "max_tokens": 500, "messages": messages, **more}
        if self.has_tools:
            request["tools"] = TOOLS
        sent = json.loads(json.dumps(request))
        wire, prepared = self.portal.call(self.preparation.read, sent, MessagesRequest, "key")
        return wire, self.portal.call(self.preparation.prompt, prepared, "key")

    def answer(self, request: MessagesRequest, prompt: Prompt, ids: Sequence[int]) -> Answer:
        """The answer with these ids, remembered as the service does it."""
        self.runs += 1
        run = self.preparation.run(f"run_{self.runs}", request, prompt, "key")
        answer = self.preparation.answer(run, prompt.plan, f"msg_{self.runs}")
        answer.take(ids)
        if answer.fault is None:
            self.portal.call(self.answers.remember, run, answer)
        return answer


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def made(
    portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Model]]:
    folder = tmp_path_factory.mktemp("answers")
    with portal.wrap_async_context_manager(Database.open(folder / "mererun.db")) as db:
        yield cache(lambda name: model_of(FAMILIES[name][0](folder / name), db, portal))


def model_of(folder: Path, db: Database, portal: BlockingPortal) -> Model:
    checkpoint = inspect(folder)
    family = family_of(checkpoint)
    served = Served(checkpoint.id, family.capabilities, Signer(b"k" * 32), grammar=False)
    known = Answers(db, served, checkpoint, content=True)
    return Model(
        Preparation(
            checkpoint,
            family,
            served,
            known,
            Documents(Sources(Files(db, folder), None)),
            Threads(Jobs(db), folder, content=True),
            context_tokens=4096,
            max_output_tokens=4096,
        ),
        known,
        PromptTokens(checkpoint),
        min(family.stop_ids),
        family.capabilities.tools,
        portal,
    )


def after(messages: Sequence[Any], content: Sequence[Any]) -> list[Any]:
    calls = [each["id"] for each in content if each["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "done"} for id in calls]
    return [
        *messages,
        {"role": "assistant", "content": content},
        {"role": "user", "content": results or "on"},
    ]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_answer_that_is_sent_back_begins_the_next_prompt(
    made: Callable[[str], Model], family: str, data: st.DataObject
) -> None:
    model = made(family)
    wholes = [list(each) for each in FAMILIES[family][1].values()]
    parts = sorted({each for whole in wholes for each in whole if each != START})
    marks = {each for whole in wholes for each in whole if isinstance(each, Marker)}
    kinds = ["disabled", "adaptive", "between_tools"] if model.has_tools else ["disabled"]
    thinking = data.draw(st.sampled_from(kinds)) if family not in ("llama", "gemma3") else None
    if family in ("qwen2.5", "qwen3-coder") and thinking == "adaptive":
        thinking = "disabled"  # which they cannot
    more: dict[str, Any] = {"thinking": {"type": thinking}} if thinking else {}
    messages, computed = ASKED, list[int]()
    for _ in range(3):
        request, prompt = model.prompt(messages, **more)
        assert prompt.ids[: len(computed)].tolist() == computed
        some = st.lists(st.sampled_from([*parts, "\n", "größer", " ", '"']), max_size=6)
        pieces = data.draw(st.one_of(st.sampled_from(wholes), some))
        marked = (model.tokens.special[each] if each in marks else each for each in pieces)
        ids = [*model.tokens.encode(marked), model.stop]
        answer = model.answer(request, prompt, ids)
        content = content_of(answer.pieces)
        if answer.fault is not None or not content:
            continue
        assert answer.ended_itself
        messages, computed = after(messages, content), [*prompt.ids, *ids[:-1]]
    assert model.prompt(messages, **more)[1].ids[: len(computed)].tolist() == computed


def test_in_memory_those_used_last_are_known(
    made: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(answers, "_REMEMBERED_BYTES", 4000)
    model = made("qwen3")
    folder = tmp_path / "tiny"
    with model.portal.wrap_async_context_manager(Database.open(tmp_path / "mererun.db")) as db:
        model = model_of(FAMILIES["qwen3"][0](folder), db, model.portal)
        sent: list[tuple[list[Any], list[int]]] = []
        for place in range(20):
            asked = [{"role": "user", "content": str(place)}]
            request, prompt = model.prompt(asked)
            ids = [model.tokens.special["<think>"], *model.tokens.encode([" ok"]), model.stop]
            content = content_of(model.answer(request, prompt, ids).pieces)
            sent.append((after(asked, content), [*prompt.ids, *ids[:-1]]))
            model.prompt(sent[0][0])
        known = [
            model.prompt(messages)[1].ids[: len(computed)].tolist() == computed
            for messages, computed in sent
        ]
        assert known[0]
        assert known[-1]
        assert 3 < sum(known) < 12

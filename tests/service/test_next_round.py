"""Prompts of the rounds of an answer, and of the requests after it: each begins with the last."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from service.scheduling.rounds import NextRound, Round
from service.tool_search.results import results_of
from service.wire.requests import MessagesRequest
from storage.answer_pieces import content_of
from storage.database import Database
from tests.end_to_end.written_answers import Marker
from tests.models.families.test_own_tokens import (
    CALL,
    CALL_END,
    CHANNEL,
    CHANNEL_END,
    EOM,
    FAMILIES,
    GEMMA_CALL,
    GEMMA_CALL_END,
    MESSAGE,
    QUOTE,
    START,
    THINK,
    THINK_END,
)
from tests.service.test_answers import Model, model_of

SEARCH = "tool_search_tool_bm25"
TOOLS: list[dict[str, Any]] = [
    {"type": SEARCH, "name": SEARCH},
    {"name": "read", "input_schema": {"type": "object"}},
    {
        "name": "weather",
        "description": "Tells the weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
        "defer_loading": True,
    },
]
ASKED: list[Any] = [{"role": "user", "content": "How is the weather?"}]

# As no template writes them.
_JSON = [
    *("\n\n", CALL, '{"arguments":{"query" :"weather"},"name":"tool_search_tool_bm25"}'),
    *(CALL_END, "\n"),
]
_XML = [
    *("\n\n", CALL, f"<function={SEARCH}><parameter=query>\nweather\n</parameter></function>"),
    *(CALL_END, "\n"),
]
_GEMMA = [GEMMA_CALL, f"call:{SEARCH}{{ query:", QUOTE, "weather", QUOTE, "}", GEMMA_CALL_END]
_GLIMMER = [
    *(" to=user", MESSAGE, "Let me see.", EOM, START, f"assistant to={SEARCH}", MESSAGE),
    f'<atem:function_calls><atem:invoke name="{SEARCH}"><atem:parameter name="query">weather'
    "</atem:parameter></atem:invoke></atem:function_calls>",
]
SEARCHES: dict[str, Sequence[str]] = {
    "qwen2.5": _JSON,
    "qwen3": [THINK, "hm ", THINK_END, *_JSON],
    "qwen3-thinking": ["hm ", THINK_END, *_JSON],
    "qwen3-coder": _XML,
    "qwen3.5": ["hm ", THINK_END, *_XML],
    "qwen3.8": ["hm ", THINK_END, *_XML],
    "gemma4": [CHANNEL, "thought\nhm", CHANNEL_END, *_GEMMA],
    "glimmer": _GLIMMER,
}

LAST: dict[str, Sequence[str]] = {
    "qwen2.5": ["Rain."],
    "qwen3": [THINK, "hm ", THINK_END, "Rain."],
    "qwen3-thinking": ["hm ", THINK_END, "Rain."],
    "qwen3-coder": ["Rain."],
    "qwen3.5": ["hm ", THINK_END, "Rain."],
    "qwen3.8": ["hm ", THINK_END, "Rain."],
    "gemma4": ["Rain."],
    "glimmer": [" to=user", MESSAGE, "Rain."],
}


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def made(
    portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Model]]:
    folder = tmp_path_factory.mktemp("rounds")
    with portal.wrap_async_context_manager(Database.open(folder / "mererun.db")) as db:
        yield cache(lambda name: model_of(FAMILIES[name][0](folder / name), db, portal))


def ids_of(model: Model, pieces: Sequence[str]) -> list[int]:
    marked = (model.tokens.special[x] if isinstance(x, Marker) else x for x in pieces)
    return [*model.tokens.encode(marked), model.stop]


def prompted(model: Model, messages: Sequence[Any], **more: Any) -> tuple[MessagesRequest, Any]:
    request = {"model": "claude-x", "max_tokens": 900, "messages": messages, "tools": TOOLS, **more}
    sent = json.loads(json.dumps(request))
    wire, prepared = model.portal.call(model.preparation.read, sent, MessagesRequest, "key")
    return wire, model.portal.call(model.preparation.prompt, prepared, "key")


def searched(last: Round) -> None:
    answer = last.answer
    answer.answer_calls(results_of(answer.unanswered, answer.plan.findable, 0))


def thinking_of(family: str) -> dict[str, Any]:
    return {} if family in ("qwen2.5", "qwen3-coder") else {"thinking": {"type": "adaptive"}}


@pytest.mark.parametrize("family", SEARCHES)
def test_each_prompt_begins_with_the_last_and_what_the_model_wrote(
    made: Callable[[str], Model], family: str
) -> None:
    model, thinking = made(family), thinking_of(family)
    wire, prompt = prompted(model, ASKED, **thinking)
    run = model.preparation.run("run_1", wire, prompt, "key")
    rounds = [Round(run, model.preparation.answer(run, prompt.plan, "msg_1"))]
    ids = ids_of(model, SEARCHES[family])
    for _ in range(2):
        last = rounds[-1]
        last.answer.take(ids)
        assert last.answer.goes_on, last.answer.pieces
        searched(last)
        next_one = model.preparation.next_round(last)
        assert isinstance(next_one, NextRound)
        kept = json.dumps(next_one.as_json())
        assert json.dumps(NextRound.recalled(json.loads(kept)).as_json()) == kept
        rounds.append(model.preparation.begun(next_one, last, "msg_1"))
        computed = [*last.run.prompt, *ids[:-1]]
        assert rounds[-1].run.prompt[: len(computed)].tolist() == computed
        assert [x.name for x in rounds[-1].answer.plan.form.tools] == [SEARCH, "read", "weather"]
    ids = ids_of(model, LAST[family])
    rounds[-1].answer.take(ids)
    assert rounds[-1].answer.stop_reason == "end_turn"
    content = content_of(piece for each in rounds for piece in each.answer.pieces)
    model.portal.call(model.answers.remember, rounds)

    # What the client sends back is found to be what was computed.
    answered = [*ASKED, {"role": "assistant", "content": content}]
    _, then = prompted(model, [*answered, {"role": "user", "content": "So?"}], **thinking)
    assert "weather" in [each.name for each in then.plan.form.tools]
    computed = [*rounds[-1].run.prompt, *ids[:-1]]
    assert then.ids[: len(computed)].tolist() == computed


@pytest.mark.parametrize("family", SEARCHES)
def test_a_search_that_ends_a_message_is_gone_on_from(
    made: Callable[[str], Model], family: str
) -> None:
    model, thinking = made(family), thinking_of(family)
    wire, prompt = prompted(model, ASKED, **thinking)
    run = model.preparation.run("run_1", wire, prompt, "key")
    first = Round(run, model.preparation.answer(run, prompt.plan, "msg_2"))
    first.answer.take(ids_of(model, SEARCHES[family]))
    searched(first)
    model.portal.call(model.answers.remember, [first])
    next_one = model.preparation.next_round(first)
    assert isinstance(next_one, NextRound)
    content = content_of(first.answer.pieces)
    _, then = prompted(model, [*ASKED, {"role": "assistant", "content": content}], **thinking)
    assert then.ids == next_one.run_after(first).prompt


def test_a_message_ends_where_there_is_no_room(made: Callable[[str], Model]) -> None:
    model = made("qwen3")
    ids = ids_of(model, SEARCHES["qwen3"])
    wire, prompt = prompted(model, ASKED, max_tokens=len(ids))
    run = model.preparation.run("run_1", wire, prompt, "key")
    last = Round(run, model.preparation.answer(run, prompt.plan, "msg_1"))
    last.answer.take(ids)
    searched(last)
    assert model.preparation.next_round(last) == "max_tokens"
    long = [{"role": "user", "content": "é" * 1500}]
    room = 4096 - len(prompted(model, long)[1].ids)
    wire, prompt = prompted(model, long, max_tokens=room)
    run = model.preparation.run("run_1", wire, prompt, "key")
    last = Round(run, model.preparation.answer(run, prompt.plan, "msg_1"))
    last.answer.take([*ids_of(model, ["a" * (room - len(ids) - 20)])[:-1], *ids])
    searched(last)
    assert model.preparation.next_round(last) == "model_context_window_exceeded"

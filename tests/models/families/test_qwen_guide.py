"""Which answers Qwen's guide allows, and that what it allows is read as calls and output."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.catalog import inspect
from models.conversation import AnswerForm, ThinkingMode, ToolChoice
from models.families.qwen import QwenFamily
from models.families.qwen_dialect import CALL, CALL_END, THINK, THINK_END
from models.grammar.guide import Guide
from models.grammar.vocabulary import Vocabulary
from tests.models.families.answers import Follower
from tests.models.families.test_qwen_answer import json_call, xml_call
from tests.models.parsing.call_bodies import TOOLS
from tests.support.tiny_qwen import Generation, write_tiny_qwen

THINKS = ThinkingMode("adaptive")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LS = ("run", {"cmd": "ls"})
GENERATIONS: dict[Generation, Any] = {
    "qwen2.5": json_call,
    "qwen3": json_call,
    "qwen3-coder": xml_call,
    "qwen3.5": xml_call,
}


def form(kind: Any = "auto", name: str | None = None, **more: Any) -> AnswerForm:
    parallel = more.pop("parallel", True)
    return AnswerForm(tools=TOOLS, choice=ToolChoice(kind, name, parallel), **more)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Generation, Path]:
    base = tmp_path_factory.mktemp("models")
    return {each: write_tiny_qwen(base / each, each) for each in GENERATIONS}


@pytest.fixture(scope="module")
def followers(folders: dict[Generation, Path]) -> dict[Generation, Follower]:
    return {each: Follower(QwenFamily(inspect(folder)), folder) for each, folder in folders.items()}


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> Generation:
    return request.param


@pytest.fixture
def follower(followers: dict[Generation, Follower], generation: Generation) -> Follower:
    return followers[generation]


def test_text_is_free_until_a_call_opens(follower: Follower, generation: Generation) -> None:
    call = GENERATIONS[generation]

    for raw in ("", "Just text.", f"`{CALL}` is how", f"A {call()}\nB {call()}"):
        assert follower.refused(form(), "text", raw) is None
    assert follower.refused(form(), "text", f"{CALL}\nnever") is not None
    assert follower.refused(form(), "text", call("nobody")) is not None
    assert follower.refused(form(), "text", call("run", {"other": "x"})) is not None
    assert follower.refused(form(), "text", call()[: -len(CALL_END)]) is not None


def test_what_is_allowed_is_read_as_it_was_meant(
    follower: Follower, generation: Generation
) -> None:
    call = GENERATIONS[generation]
    content = f'<b> </parameter> {CALL[1:]} \\ " ü'
    arguments = {"path": "a.py", "content": content}
    raw = f"So:\n{call('write_file', arguments)}\n{call()}"

    assert follower.refused(form(), "text", raw) is None
    said, thought = follower.events(form(), "text", raw)
    assert said == ["So:", ("write_file", arguments), LS]
    assert thought == 0


def test_a_call_that_is_asked_for_comes(follower: Follower, generation: Generation) -> None:
    call = GENERATIONS[generation]

    assert follower.refused(form("any"), "text", "Text") is not None
    assert follower.refused(form("any"), "text", "") is not None
    assert follower.refused(form("any"), "text", call()) is None
    assert follower.refused(form("any"), "text", f"{call()}\n{call('now', {})}") is None
    assert follower.refused(form("tool", "now"), "text", call()) is not None
    assert follower.refused(form("tool", "now"), "text", call("now", {})) is None


def test_after_the_only_call_the_answer_ends(follower: Follower, generation: Generation) -> None:
    call = GENERATIONS[generation]

    assert follower.refused(form(parallel=False), "text", f"A {call()}") is None
    assert follower.refused(form(parallel=False), "text", f"{call()} more") is not None
    assert follower.refused(form("any", parallel=False), "text", call() + call()) is not None


def test_an_output_has_its_schema_unless_a_call_comes(
    follower: Follower, generation: Generation
) -> None:
    call, wants = GENERATIONS[generation], form(output_schema=SCHEMA)

    assert follower.refused(wants, "text", '{"a": 1}') is None
    assert follower.refused(wants, "text", '{"a": "x"}') is not None
    assert follower.refused(wants, "text", '{"a": 1} more') is not None
    assert follower.refused(wants, "text", call()) is None
    assert follower.refused(wants, "text", f"{call()}\n{call()}") is None
    assert follower.refused(wants, "text", f'{call()}{{"a": 1}}') is not None
    assert follower.refused(AnswerForm(output_schema=SCHEMA), "text", call()) is not None


@pytest.mark.parametrize("generation", ["qwen3", "qwen3.5"], indirect=True)
def test_what_is_asked_for_comes_after_thinking(follower: Follower, generation: Generation) -> None:
    call = GENERATIONS[generation]
    opens = "thinking" if generation == "qwen3.5" else "text"
    thought = "hm\n</think>" if generation == "qwen3.5" else "<think>\nhm\n</think>"

    wants = form("any", thinking=THINKS)
    assert follower.refused(wants, opens, f"{thought}\n\n{call()}") is None
    assert follower.refused(wants, opens, f"{thought}\n\nText") is not None
    # Nor may the answer end before what is asked for has come.
    assert follower.refused(wants, opens, thought.removesuffix(THINK_END)) is not None
    wants = form(output_schema=SCHEMA, thinking=THINKS)
    assert follower.refused(wants, opens, f'{thought}\n\n{{"a": 1}}') is None
    said, count = follower.events(wants, opens, f'{thought}\n\n{{"a": 1}}')
    assert said == [("thinks", "hm"), '{"a": 1}']
    # Its delimiters count; the one in the prompt is not the answer's.
    assert count == len("hm\n") + 1 + (2 if generation == "qwen3" else 0)


@pytest.mark.parametrize("generation", ["qwen3", "qwen3.5"], indirect=True)
def test_thinking_is_free_and_looks_like_anything(
    follower: Follower, generation: Generation
) -> None:
    raw = f"I write {CALL}x{CALL_END}.</think>\n\nDone."

    assert follower.refused(form(thinking=THINKS), "thinking", raw) is None
    assert follower.events(form(thinking=THINKS), "thinking", raw)[0] == [
        ("thinks", f"I write {CALL}x{CALL_END}."),
        "Done.",
    ]


@pytest.mark.parametrize("opens", ["text", "thinking"])
def test_thinking_is_closed_where_its_budget_ends(
    folders: dict[Generation, Path], opens: str
) -> None:
    folder = folders["qwen3.5"]
    family, vocabulary = QwenFamily(inspect(folder)), Vocabulary(folder)
    asked = AnswerForm(thinking=ThinkingMode("enabled", 10))
    spec = family.guide(asked, opens)
    assert spec is not None
    guide = Guide(spec, vocabulary, family.stop_ids)
    parser = family.parser(asked, opens)
    tokens = family._tokens  # pyright: ignore[reportPrivateUsage]
    written = [tokens.special[THINK]] if opens == "text" else []
    events: list[Any] = []
    for place in range(40):
        wanted = written[place] if place < len(written) else tokens.plain("x")[0]
        forced = guide.forced()
        token = wanted if forced is None else forced
        guide.advance(token)
        events += parser.feed(token)
        written[place:] = [token]

    assert parser.thinking_tokens == 10
    assert written[9] == tokens.special[THINK_END]
    assert set(written[10:]) == {tokens.plain("x")[0]}


def test_without_a_grammar_only_the_opener_of_an_asked_call_is_written_for_the_model(
    follower: Follower, generation: Generation
) -> None:
    wants = form("any", guided=False)

    assert follower.refused(wants, "text", "Text") is not None
    assert follower.refused(wants, "text", f"{CALL}anything{CALL_END} and text") is None


def test_nothing_is_asked_of_plain_text(folders: dict[Generation, Path]) -> None:
    family = QwenFamily(inspect(folders["qwen3.5"]))

    for each in (
        AnswerForm(),
        AnswerForm(thinking=THINKS),
        form("none"),
        form(guided=False),
        AnswerForm(output_schema=SCHEMA, guided=False),
    ):
        assert family.guide(each, "text") is None


def test_a_guide_can_be_sent_to_the_engine(folders: dict[Generation, Path]) -> None:
    family = QwenFamily(inspect(folders["qwen3"]))
    spec = family.guide(form("any", thinking=ThinkingMode("enabled", 100)), "text")

    assert spec is not None
    assert type(spec).from_json(json.loads(json.dumps(spec.as_json()))) == spec

"""The real architectures of the families, with random weights: they generate what they must."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from models.catalog import inspect
from models.conversation import (
    AnswerForm,
    Conversation,
    ThinkingMode,
    Tool,
    ToolChoice,
    Turn,
)
from models.families import family_of
from models.families.family import Family
from models.parsing.events import Event
from tests.models.engine.events import ending, tokens_of
from tests.models.engine.on_mlx import OnMlx, generate, run_of
from tests.models.families.answers import blocks
from tests.support.random_weights import write_random_weights
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer

CHOOSE = Tool(
    "choose",
    "Chooses.",
    {
        "type": "object",
        "properties": {"what": {"enum": ["this", "that"]}},
        "required": ["what"],
    },
)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write: Callable[[Path], Path] = request.param
    return write_random_weights(write(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.mark.parametrize("folder", [write_tiny_gemma4, write_tiny_glimmer], indirect=True)
@pytest.mark.parametrize(
    "thinking", [ThinkingMode(), ThinkingMode("enabled", 12)], ids=["at once", "after thinking"]
)
def test_a_call_that_must_come_comes(mlx: OnMlx, folder: Path, thinking: ThinkingMode) -> None:
    family = family_of(inspect(folder))
    form = AnswerForm((CHOOSE,), ToolChoice("any", parallel=False), thinking)
    found, thought = _answer(mlx, folder, family, form)
    assert found[-1] in [("choose", {"what": what}) for what in ("this", "that")]
    assert thought <= (thinking.budget_tokens or 0)


@pytest.mark.parametrize(
    "folder", [write_tiny_gemma3, write_tiny_gemma4, write_tiny_glimmer], indirect=True
)
def test_output_follows_its_schema(mlx: OnMlx, folder: Path) -> None:
    family = family_of(inspect(folder))
    form = AnswerForm(output_schema={"enum": ["one", "two"]})
    found, _ = _answer(mlx, folder, family, form)
    assert found in (['"one"'], ['"two"'])


def _answer(
    mlx: OnMlx, folder: Path, family: Family, form: AnswerForm
) -> tuple[Sequence[object], int]:
    """The blocks of an answer at temperature 1, and how many tokens were thinking."""
    prompt = family.render(Conversation((Turn.of("user", "Choose."),), form))
    guide = family.guide(form, prompt.opens)
    assert guide is not None
    run = run_of(
        prompt.ids,
        400,
        temperature=1.0,
        stop_ids=tuple(sorted(family.stop_ids)),
        guide=guide.as_json(),
    )
    events = mlx(generate, folder, run)
    assert ending(events).reason == "stop"
    parser = family.parser(form, prompt.opens)
    read: list[Event] = []
    for token in tokens_of(events):
        if token not in family.stop_ids:
            read += parser.feed(token)
    return blocks(read + parser.end(cut=False)), parser.thinking_tokens

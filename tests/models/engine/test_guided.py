"""Runs that are guided, of a random model and of a real one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from models.conversation import Tool
from models.engine.protocol import JobEvent, Run, ids_of
from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec
from models.grammar.json_grammar import json_calls_grammar, output_grammar
from models.grammar.validation import Schemas
from tests.models.engine.events import ending, prompt_of, tokens_of
from tests.models.engine.on_mlx import OnMlx, generate, in_a_new_engine, resumed, run_of, segments

STOP = 258
SAMPLED = {"temperature": 1.0, "seed": 5, "stop_ids": (STOP,)}
TOOLS = (
    Tool(
        "run",
        "",
        {
            "properties": {
                "how": {"enum": ["fast", "slow"]},
                "often": {"type": "integer", "minimum": 0, "maximum": 99},
                "loud": {"type": "boolean"},
            },
            "required": ["how", "often"],
        },
    ),
    Tool("stop", "", {"properties": {"now": {"type": "boolean"}}, "required": ["now"]}),
)
CALL = GuideSpec((Constrained(json_calls_grammar(TOOLS), 1), Ended()))
settings_of_draws = pytest.mark.parametrize(
    "settings",
    [SAMPLED, {**SAMPLED, "temperature": 0.0}, {**SAMPLED, "top_k": 5, "top_p": 0.5}],
    ids=["sampled", "greedy", "nucleus"],
)


def guided(spec: GuideSpec, max_tokens: int = 400, **settings: Any) -> Run:
    return run_of(prompt_of(12), max_tokens, guide=spec.as_json(), **{**SAMPLED, **settings})


def text_of(folder: Path, events: list[JobEvent]) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(tokens_of(events), skip_special_tokens=True)


@settings_of_draws
def test_a_random_model_writes_a_valid_call(
    mlx: OnMlx, tiny: Path, settings: dict[str, Any]
) -> None:
    for seed in range(4):
        events = mlx(generate, tiny, guided(CALL, **{**settings, "seed": seed}))
        assert ending(events).reason == "stop"
        call = json.loads(text_of(tiny, events))
        assert Schemas(TOOLS).fault(call["name"], call["arguments"]) is None
        assert call["name"] in ("run", "stop")


def test_output_follows_its_schema(mlx: OnMlx, tiny: Path) -> None:
    spec = GuideSpec((Constrained(output_grammar({"enum": ["yes", "no", 3]}), 1), Ended()))
    events = mlx(generate, tiny, guided(spec))
    assert json.loads(text_of(tiny, events)) in ("yes", "no", 3)


@settings_of_draws
def test_a_text_is_the_same_with_and_without_a_guide(
    mlx: OnMlx, tiny: Path, settings: dict[str, Any]
) -> None:
    plain = run_of(prompt_of(12), 60, **settings)
    tokens = tokens_of(mlx(generate, tiny, plain))
    exit = next(id for id in (256, 257, 0, 1) if id not in tokens)
    free = GuideSpec((Free({exit: 1}, text=True), *CALL.states))
    assert tokens_of(mlx(generate, tiny, replace(plain, guide=free.as_json()))) == tokens


def test_what_is_forced_comes_and_what_is_free_goes_on_as_it_would(mlx: OnMlx, tiny: Path) -> None:
    thinking = Free({256: 1}, close=(7, 256))
    run = guided(GuideSpec((thinking, Forced((8, 9), 2), Free()), 10), 40)
    tokens = tokens_of(mlx(generate, tiny, run))
    plain = replace(run, guide=None)
    assert tokens[:8] == tokens_of(mlx(generate, tiny, plain))[:8]
    assert tokens[8:12] == [7, 256, 8, 9]
    after = replace(plain, prompt=run.prompt + ids_of(tokens[:12]), first_index=12, max_tokens=28)
    assert tokens[12:] == tokens_of(mlx(generate, tiny, after))


@settings_of_draws
@pytest.mark.parametrize("new_engine", [False, True])
def test_a_guided_run_taken_up_anywhere_goes_on_just_there(
    mlx: OnMlx,
    tiny: Path,
    request: pytest.FixtureRequest,
    settings: dict[str, Any],
    new_engine: bool,
) -> None:
    spec = GuideSpec(
        (Free({256: 1}, close=(7, 256)), Constrained(json_calls_grammar(TOOLS), 2), Ended()), 6
    )
    run = replace(guided(spec, **settings), scope=request.node.nodeid)
    whole = mlx(generate, tiny, replace(run, scope=""))
    for cut in (2, 4, 7, 9, 20, len(whole) - 2):
        here = replace(run, scope=f"{run.scope} {cut}")
        if new_engine:
            parts = mlx(in_a_new_engine, tiny, here, cut)
        else:
            parts = mlx(segments, tiny, here, [cut])
        assert [id for part in parts for id in tokens_of(part)] == tokens_of(whole)
        assert ending(parts[-1]).reason == ending(whole).reason == "stop"


def test_what_was_drawn_for_a_run_is_not_for_one_with_another_guide(
    mlx: OnMlx, tiny: Path, request: pytest.FixtureRequest
) -> None:
    free = run_of(prompt_of(12), 30, scope=request.node.nodeid, **SAMPLED)
    events = mlx(generate, tiny, free, 5, "suspended")
    other = next(id for id in (7, 8) if id != tokens_of(mlx(generate, tiny, free))[3])
    spec = GuideSpec((Forced((*tokens_of(events), other), 1), Free()))
    mlx(generate, tiny, free, 5, "suspended")
    again = mlx(generate, tiny, replace(resumed(free, events), guide=spec.as_json()))
    assert tokens_of(again)[0] == other


def test_an_answer_that_its_guide_does_not_allow_fails_and_says_so(mlx: OnMlx, tiny: Path) -> None:
    run = guided(CALL)
    with pytest.raises(Exception, match="does not allow"):
        mlx(generate, tiny, replace(run, first_index=3))


QUESTION = (
    "<|im_start|>system\nYou answer with calls of tools.<|im_end|>\n"
    "<|im_start|>user\nRun it slowly, four times.<|im_end|>\n<|im_start|>assistant\n"
)


def test_a_real_model_writes_a_valid_call_at_temperature_1(mlx: OnMlx, qwen: Path) -> None:
    tokenizer = Tokenizer.from_file(str(qwen / "tokenizer.json"))
    prompt = tokenizer.encode(QUESTION).ids
    (end,) = tokenizer.encode("<|im_end|>").ids
    run = run_of(prompt, 60, temperature=1.0, seed=0, stop_ids=(end,), guide=CALL.as_json())
    events = mlx(generate, qwen, run)
    assert ending(events).reason == "stop"
    call = json.loads(text_of(qwen, events))
    assert Schemas(TOOLS).fault(call["name"], call["arguments"]) is None

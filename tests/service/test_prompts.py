"""Prompts far too long are refused without tokenising all of them, and counted in portions."""

from array import array
from functools import partial
from threading import Event

import anyio
import pytest
from anyio import to_thread

from models.conversation import AnswerForm, Conversation, Role, Turn
from models.families.family import Family, PreparedPrompt
from models.parsing.answer import AnswerParser
from service.errors import ApiError
from service.guiding import Guides
from service.prompts import Prompts
from service.requests.prepare import Prepared

MOST = 1_000_000  # characters, for a small context
ROLES: list[Role] = ["user", "assistant"]


class Counting(Family):
    """One token for so many characters; remembers how many it was given."""

    name = "counting"
    stop_ids = frozenset({0})

    def __init__(self, characters_per_token: int = 1) -> None:
        self.characters_per_token = characters_per_token
        self.seen = 0
        self.rendering = Event()
        self.may_render = Event()
        self.may_render.set()

    def render(self, conversation: Conversation) -> PreparedPrompt:
        self.seen = sum(len(turn.text) for turn in conversation.turns)
        if self.seen > MOST:
            self.rendering.set()
            self.may_render.wait()
        return PreparedPrompt(array("I", bytes(4 * (self.seen // self.characters_per_token))))

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        raise NotImplementedError


def prompts_of(family: Family, context_tokens: int) -> Prompts:
    return Prompts(family, Guides(family), context_tokens)


def turns(*lengths: int) -> Prepared:
    turns = tuple(Turn.of(ROLES[i % 2], "x" * n) for i, n in enumerate(lengths))
    return Prepared(Conversation(turns), ())


@pytest.mark.anyio
async def test_a_prompt_is_counted_beyond_its_context_up_to_a_limit() -> None:
    prompts = prompts_of(Counting(), context_tokens=10)
    assert len((await prompts.prepare(turns(5, 0, 7))).ids) == 12
    assert len((await prompts.prepare(turns(MOST))).ids) == MOST


@pytest.mark.anyio
@pytest.mark.parametrize("lengths", [[MOST + 1], [MOST, 1], [1] * 9 + [MOST], [0, MOST * 3, 5]])
async def test_only_the_beginning_of_a_longer_prompt_is_tokenised(lengths: list[int]) -> None:
    family = Counting()
    with pytest.raises(ApiError) as caught:
        await prompts_of(family, context_tokens=10).prepare(turns(*lengths))
    assert caught.value.status == 400
    assert caught.value.message == (
        f"prompt is too long: {MOST} tokens > 10 maximum"
        f" (counted in the first {MOST} of {sum(lengths)} characters)"
    )
    assert family.seen == MOST


@pytest.mark.anyio
async def test_a_longer_prompt_of_few_tokens_is_refused_by_its_characters() -> None:
    with pytest.raises(ApiError) as caught:
        await prompts_of(Counting(1000), context_tokens=5000).prepare(turns(MOST * 2))
    assert caught.value.message == f"prompt is too long: {MOST * 2} characters > {MOST} maximum"


@pytest.mark.anyio
async def test_a_large_context_moves_the_limit() -> None:
    prompts = prompts_of(Counting(), context_tokens=MOST)
    assert len((await prompts.prepare(turns(12 * MOST))).ids) == 12 * MOST
    with pytest.raises(ApiError, match=f"first {12 * MOST} of {12 * MOST + 1} characters"):
        await prompts.prepare(turns(12 * MOST + 1))


@pytest.mark.anyio
async def test_many_turns_of_any_length_together_are_counted() -> None:
    prompts = prompts_of(Counting(), context_tokens=10)
    counted = await prompts.prepare(turns(MOST, MOST, 5), counts=True)
    assert len(counted.ids) == 2 * MOST + 5


@pytest.mark.anyio
async def test_what_is_encoded_at_once_is_limited_in_counting_too() -> None:
    family = Counting()
    with pytest.raises(ApiError, match=f"first {MOST} of {MOST + 6} characters"):
        await prompts_of(family, context_tokens=10).prepare(turns(5, MOST + 1), counts=True)
    assert family.seen == MOST


@pytest.mark.anyio
async def test_no_other_prompt_waits_for_long_ones_that_are_counted() -> None:
    family = Counting()
    prompts = prompts_of(family, context_tokens=10)
    family.may_render.clear()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(partial(prompts.prepare, turns(MOST, MOST), counts=True))
        await to_thread.run_sync(family.rendering.wait)
        try:
            with anyio.fail_after(10):
                assert len((await prompts.prepare(turns(5))).ids) == 5
                assert len((await prompts.prepare(turns(6), counts=True)).ids) == 6
        finally:
            family.may_render.set()

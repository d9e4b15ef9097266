"""Prompts far too long are refused without tokenising all of them."""

from array import array

import pytest

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

    def render(self, conversation: Conversation) -> PreparedPrompt:
        self.seen = sum(len(turn.text) for turn in conversation.turns)
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

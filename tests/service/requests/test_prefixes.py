"""What clients change from turn to turn leaves the beginning of a prompt as it was."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from models.catalog import inspect
from models.families import family_of
from models.families.family import Family
from service.prompts import Prompt
from service.wire.requests import CountTokensRequest, MessagesRequest
from tests.models.families.test_generic import BRACKETS
from tests.service.requests.served import (
    EPHEMERAL,
    assistant,
    call,
    result,
    system,
    text,
    tool,
    user,
)
from tests.service.requests.test_every_family import FAMILIES, prompt
from tests.support.tiny_gemma import write_tiny_gemma3

WRITERS = {
    **{name: write for name, (write, _) in FAMILIES.items()},
    "generic": partial(write_tiny_gemma3, template=BRACKETS),
}


@pytest.fixture(scope="module", params=WRITERS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return family_of(inspect(WRITERS[request.param](tmp_path_factory.mktemp("models") / "tiny")))


def left(tokens: int) -> str:
    return f"<total_tokens>{tokens} tokens left</total_tokens>"


def as_string(said: str) -> str:
    return said


def as_list(said: str) -> list[dict[str, Any]]:
    return [text(said)]


def as_marked(said: str) -> list[dict[str, Any]]:
    return [text(said, cache_control=EPHEMERAL)]


def kept(prompt: Prompt, place: int = -1) -> list[int]:
    return prompt.ids[: prompt.boundaries[place].tokens].tolist()


TALKS: dict[str, list[list[dict[str, Any]]]] = {
    "text": [
        [user("Open notes.txt"), system("Agents: explore, plan.")],
        [assistant("It says: x."), user("And b.txt?"), system(left(9000))],
        [assistant("It says: y."), user("Thank you."), system(left(8000))],
        [assistant("You are welcome."), user("And c.txt?"), system(left(7000))],
    ],
    "calls": [
        [user("Open notes.txt"), system("Agents: explore, plan.")],
        [assistant([text("Yes."), call("1")]), user([result("1", "x\n")]), system(left(9000))],
        [assistant([call("2"), call("3")]), user([result("3", ""), result("2", "z")])],
        [system(left(8000)), assistant("They say z."), user("Thank you."), system(left(7000))],
    ],
}


def turns_of(talk: list[list[dict[str, Any]]], late: Any, last: Any) -> Iterator[list[Any]]:
    """The messages of one request after the other, the last one marked."""
    for count in range(1, len(talk) + 1):
        *before, latest = (message for part in talk[:count] for message in part)
        earlier = [
            {**each, "content": late(each["content"])} if isinstance(each["content"], str) else each
            for each in before
        ]
        if isinstance(latest["content"], str):
            yield [*earlier, {**latest, "content": last(latest["content"])}]
        else:
            *blocks, end = latest["content"]
            content = [*blocks, {**end, "cache_control": EPHEMERAL}]
            yield [*earlier, {**latest, "content": content}]


@pytest.mark.anyio
@pytest.mark.parametrize("late", [as_string, as_list])
@pytest.mark.parametrize("name", TALKS)
async def test_what_was_kept_of_one_turn_begins_the_next(
    family: Family, name: str, late: Any
) -> None:
    more: dict[str, Any] = {"system": [text("You are kind."), text("Be brief.")]}
    if family.capabilities.tools:
        more["tools"] = [tool("Read")]
    before: list[int] = []
    for messages in turns_of(TALKS[name], late, as_marked):
        made = await prompt(MessagesRequest, family, messages=messages, **more)
        assert len(made.boundaries) == 1
        now = kept(made)
        assert now[: len(before)] == before
        assert len(now) > len(before)
        assert made.ids[: len(now)].tolist() == now
        plain = [*messages[:-1], {**messages[-1], "content": _unmarked(messages[-1]["content"])}]
        unmarked = await prompt(MessagesRequest, family, messages=plain, **more)
        assert (unmarked.ids, unmarked.boundaries) == (made.ids, ())
        counted = await prompt(CountTokensRequest, family, messages=messages, **more)
        assert (counted.ids, counted.boundaries) == (made.ids, ())
        before = now


def _unmarked(blocks: list[dict[str, Any]]) -> Any:
    """A single text as a string."""
    if [each["type"] for each in blocks] == ["text"]:
        return blocks[0]["text"]
    return [{key: each[key] for key in each if key != "cache_control"} for each in blocks]


@pytest.mark.anyio
async def test_a_counter_in_a_late_system_turn_reaches_the_model(family: Family) -> None:
    texts = [left(9000), left(8000)]
    made = [
        await prompt(MessagesRequest, family, messages=[user("a"), system(each)]) for each in texts
    ]
    assert made[0].ids != made[1].ids


def attribution(code: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.200.abc; cc_entrypoint=cli; cch={code};"


LONG = "You are Claude Code.\n\nBe brief."
SYSTEMS: dict[str, Any] = {
    "a block of its own": lambda line: [text(line), text(LONG, cache_control=EPHEMERAL)],
    "the last block": lambda line: [text(LONG, cache_control=EPHEMERAL), text(line)],
    "the first line of a longer block": lambda line: [
        text(f"{line}\n{LONG}", cache_control=EPHEMERAL)
    ],
    "the last line of a longer block": lambda line: [
        text(f"{LONG}\n{line}", cache_control=EPHEMERAL)
    ],
    "with counters that grow": lambda line: [
        text(f"{line}\n{LONG}", cache_control=EPHEMERAL),
        *(text(left(int(each))) for each in line.partition("cch=")[2].strip(";")),
    ],
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", SYSTEMS)
async def test_an_attribution_that_changes_makes_no_difference(family: Family, name: str) -> None:
    said = [text("what does x-anthropic-billing-header: do?"), text(attribution("1"))]
    more: dict[str, Any] = {"messages": [user(said)]}
    bare = await prompt(
        MessagesRequest, family, system=[text(LONG, cache_control=EPHEMERAL)], **more
    )
    for code in ("11111", "222"):
        first = SYSTEMS[name](attribution(code))
        made = await prompt(MessagesRequest, family, system=first, **more)
        assert made == bare
        assert made.boundaries
        counted = await prompt(CountTokensRequest, family, system=first, **more)
        assert counted.ids == bare.ids
    quoted = [text(attribution("2")), text("what does x-anthropic-billing-header: do?")]
    other = await prompt(MessagesRequest, family, system=LONG, messages=[user(quoted)])
    assert other.ids != bare.ids

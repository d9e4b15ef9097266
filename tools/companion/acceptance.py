"""How many drafts the target would have taken, on text that it wrote."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.companion.drafter import Drafter
from tools.companion.generation import Text
from tools.companion.training import following, precision_of

_ROWS, _ANCHORS = 32, 64  # at once


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of rounds as decoding has them, each from the token after the last one's drafts that held.

    `length` is tokens a round: drafts that held, and the target's own. `by_position` is the share
    of rounds in which the first 1, 2, ... drafts all held.
    """

    rows: int
    rounds: int
    length: float
    by_position: tuple[float, ...]


def acceptance(drafter: Drafter, text: Text, seconds: float) -> Acceptance:
    """Over as many rows of `text` as `seconds` allow, and some at least.

    A draft holds when it is what the text has: exactly what decoding does where text and decoding
    are greedy, a lower bound for text that was drawn. Rounds beyond a row's end are not counted.
    """
    started = time.monotonic()
    rounds: list[tuple[int, int]] = []
    rows = 0
    for part in torch.arange(len(text), device=text.ids.device).split(_ROWS):
        some = text[part]
        held = held_drafts(drafter, some).tolist()
        for row, answer in zip(held, some.answer.tolist(), strict=True):
            rounds += _rounds(row, answer, drafter.plan.block)
        rows += len(some)
        if time.monotonic() - started > seconds:
            break
    count = max(1, len(rounds))
    return Acceptance(
        rows,
        len(rounds),
        sum(tokens for _, tokens in rounds) / count,
        tuple(
            sum(held > place for held, _ in rounds) / count
            for place in range(drafter.plan.block - 1)
        ),
    )


@torch.no_grad()
def held_drafts(drafter: Drafter, text: Text) -> Tensor:
    """How many of the drafts after each token are what follows it in its answer,
    `[rows, length]`."""
    rows, length = text.ids.shape
    held: list[Tensor] = []
    for places in torch.arange(length, device=text.ids.device).split(_ANCHORS):
        anchors = places.expand(rows, -1)
        wanted, in_answer = following(text, anchors, drafter.plan.block - 1)
        with precision_of(drafter):
            logits = drafter(anchors, text.ids[:, places], text.features)
        drafts = drafter.draft_ids[logits.argmax(-1)]
        held.append(((drafts == wanted) & in_answer).cumprod(2).sum(2))
    return torch.cat(held, 1)


def _rounds(held: list[int], answer: list[bool], block: int) -> list[tuple[int, int]]:
    """The drafts that held, and the tokens that came of it, for each round of one row."""
    rounds: list[tuple[int, int]] = []
    place = 0
    while place + block < len(answer):
        if answer[place] and answer[place + 1]:
            tokens = held[place] + 1
            # An answer that a draft ends has no token of the target's own after it.
            rounds.append((held[place], sum(answer[place + 1 : place + 1 + tokens])))
            place += tokens
        else:
            place += 1
    return rounds

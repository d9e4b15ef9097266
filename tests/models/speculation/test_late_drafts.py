"""Drafts that a device may still be making: when they are waited for, and what they then cost."""

from typing import Any

import numpy as np
import pytest

from models.speculation.drafter import Drafter, Drafts, Ids, Offer
from models.speculation.speculation import Draft, Speculation
from models.speculation.step_costs import StepCosts

WIDTH = 4


class OnDevice:
    """Drafts that tell whether they were read."""

    was_read = False

    def __len__(self) -> int:
        return WIDTH

    def __array__(self, *given: Any, **named: Any) -> Ids:
        self.was_read = True
        return np.zeros(WIDTH, np.uint32)

    def tolist(self) -> list[int]:
        return np.asarray(self).tolist()


class Device(Drafter):
    def __init__(self) -> None:
        self.last = OnDevice()
        self.ahead: list[Drafts] = []

    def offer(self, tokens: Ids) -> Offer:
        return Offer(self, "device", 0.9, WIDTH, passes=1)

    def draft(self, tokens: Ids, width: int) -> Drafts:
        self.last = OnDevice()
        return self.last

    def draft_ahead(self, drafts: Drafts, drawn: Any) -> None:
        self.ahead.append(drafts)


def known(costs: StepCosts, cost: float = 1.2) -> StepCosts:
    """To which all widths are."""
    for rows in range(2, WIDTH + 2):
        for _ in range(2):
            costs.measured(rows, cost)
    return costs


def speculation(costs: StepCosts, device: Device, *, runs_ahead: bool = True) -> Speculation:
    """In an answer with no matches that can stake as much as it likes."""
    made = Speculation(range(1000, 1004), costs, device, runs_ahead=runs_ahead)
    for token in range(400):
        made.went_on([token])
        made.stepped(1.0)
    return made


def drafted(speculation: Speculation, **more: Any) -> Draft:
    draft = speculation.draft(5000, WIDTH, **more)
    assert draft is not None
    return draft


def test_they_are_waited_for_until_it_is_known_what_their_verification_takes() -> None:
    device, costs = Device(), StepCosts()
    for _ in range(2):
        draft = drafted(made := speculation(costs, device))
        assert device.last.was_read
        made.verified(draft, WIDTH, 1.2)
    assert drafted(speculation(costs, device)).is_late
    assert not device.last.was_read


@pytest.mark.parametrize("how", ["a grammar reads them", "the device is the host"])
def test_they_are_waited_for_where_that_costs_nothing(how: str) -> None:
    device, a_grammar_reads = Device(), how == "a grammar reads them"
    made = speculation(known(StepCosts()), device, runs_ahead=a_grammar_reads)
    draft = drafted(made, is_read=a_grammar_reads)
    assert device.last.was_read
    assert not draft.is_late


def test_only_what_has_drafted_begins_with_the_next_drafts() -> None:
    device = Device()
    made = speculation(known(StepCosts()), device)
    forced = made.draft(5000, WIDTH, [5, 6])
    assert forced is not None
    made.verifying(forced, None)
    assert device.ahead == []
    made.verifying(drafted(made), None)
    assert device.ahead == [device.last]


def test_what_a_round_took_beyond_its_verification_was_drafting() -> None:
    costs = known(StepCosts())
    made = speculation(costs, Device())
    before, drafting = costs.of(WIDTH + 1), costs.drafting
    for _ in range(30):
        made.verified(drafted(made), WIDTH, 1.7)
    assert costs.of(WIDTH + 1) == pytest.approx(before)
    assert costs.drafting == pytest.approx(1.7 - before, abs=0.01) != drafting


def test_a_round_that_took_less_than_its_verification_was_known_to_take_makes_that_less() -> None:
    costs = known(StepCosts(), cost=1.5)
    made = speculation(costs, Device())
    for _ in range(30):
        made.verified(drafted(made), WIDTH, 1.1)
    assert costs.of(WIDTH + 1) == pytest.approx(1.1, abs=0.05)

"""When drafts are tried, and when they are left alone: by what was measured, and nothing else."""

import itertools

from models.speculation.drafter import Drafter, Offer
from models.speculation.policy import Policy
from models.speculation.step_costs import StepCosts

CHANCES = {2: 0.4, 4: 0.6, 8: 0.8, 20: 0.9}


def of_match(length: int) -> Offer:
    return Offer(Drafter(), f"match of {length}", CHANCES[length], 15)


def of_model(most: int = 15, **passes: int) -> Offer:
    return Offer(Drafter(), "model", 0.7, most, **passes)


def width_of(policy: Policy, *offers: Offer) -> int:
    chosen = policy.choose(offers)
    return 0 if chosen is None else chosen[1]


def warmed(costs: StepCosts | None = None, serial: float = 1.0, tokens: int = 100) -> Policy:
    """In an answer of so many tokens, all of serial steps: the longer, the more it can stake."""
    policy = Policy(costs or StepCosts())
    for _ in range(tokens):
        policy.stepped(serial)
    return policy


def costs_of(row: float) -> StepCosts:
    """Where a row more costs so many steps."""
    costs = StepCosts()
    for rows in range(2, 17):
        for _ in range(20):
            costs.measured(rows, 1 + row * (rows - 1))
    return costs


def rounds(policy: Policy, count: int, share: float, seconds: float, match: int = 8) -> None:
    for _ in range(count):
        if width := width_of(policy, of_match(match)):
            policy.verified(of_match(match), width, round(share * width), seconds)


def test_it_begins_with_two_steps_whatever_may_be_drafted() -> None:
    policy = Policy(StepCosts())
    for _ in range(2):
        assert not policy.drafts
        policy.stepped(0.1)
    assert policy.drafts


def test_the_longer_the_match_the_more_is_drafted() -> None:
    widths = [width_of(warmed(), of_match(match)) for match in (2, 4, 8, 20)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == 15


def test_no_answer_is_much_slower_for_drafts_that_are_all_wrong() -> None:
    for match, row_cost in itertools.product(CHANCES, (0.02, 0.1, 0.5)):
        policy, seconds = Policy(costs_of(row_cost)), 0.0
        for tokens in range(1, 500):
            width = width_of(policy, of_match(match)) if policy.drafts else 0
            took = 1 + row_cost * width
            seconds += took
            if width:
                policy.verified(of_match(match), width, 0, took)
            else:
                policy.stepped(took)
            assert tokens < 20 or tokens / seconds > 0.97


def test_an_answer_that_has_gained_by_drafts_stakes_more() -> None:
    policy = warmed(costs_of(0.1), tokens=10)
    first = width_of(policy, of_match(8))
    policy.verified(of_match(8), first, first, 1 + 0.1 * first)
    assert width_of(policy, of_match(8)) > first > 0


def test_drafts_that_are_right_are_followed_by_more() -> None:
    policy = warmed()
    first = width_of(policy, of_match(4))
    rounds(policy, 10, 1.0, 1.2, match=4)
    assert width_of(policy, of_match(4)) > first


def test_drafts_that_are_wrong_are_followed_by_fewer() -> None:
    policy = warmed()
    first = width_of(policy, of_match(8))
    rounds(policy, 4, 0.0, 1.2)
    assert width_of(policy, of_match(8)) < first


def test_passes_that_cost_what_their_rows_cost_are_not_made() -> None:
    """As with a product that reads the weights for each row."""
    costs = StepCosts()
    policy = warmed(costs)
    for _ in range(40):
        if width := width_of(policy, of_match(20)):
            policy.verified(of_match(20), width, width, 1.0 + width)
    assert width_of(warmed(costs), of_match(20)) == 0


def test_the_first_pass_of_a_width_says_nothing_of_its_cost() -> None:
    costs = StepCosts()
    before = costs.of(8)
    costs.measured(8, 1000.0)
    assert costs.of(8) == before
    costs.measured(8, 2.0)
    assert costs.of(8) == 2.0


def test_what_a_pass_costs_is_known_to_the_next_run_on_slower_days_too() -> None:
    costs = StepCosts()
    rounds(warmed(costs), 20, 0.5, 4.0)
    slow, fast = warmed(costs, serial=10.0), warmed(costs)
    assert width_of(slow, of_match(8)) == width_of(fast, of_match(8))


def test_few_right_drafts_are_given_up_when_steps_are_faster() -> None:
    policy = warmed()
    for _ in range(10):  # two of warm-up, eight measured
        assert policy.drafts
        policy.verified(of_match(8), 5, 0, 1.5)
    for _ in range(3):
        assert not policy.drafts
        policy.stepped(1.0)
    assert policy.pauses == 1
    for _ in range(32):
        assert not policy.drafts
        policy.stepped(1.0)
    assert policy.drafts


def test_few_right_drafts_are_kept_when_steps_are_slower() -> None:
    policy = warmed()
    for _ in range(10):
        policy.verified(of_match(8), 5, 2, 1.5)
    for _ in range(3):
        policy.stepped(1.0)
    assert policy.drafts
    assert policy.pauses == 0


def test_what_was_given_up_twice_rests_for_longer() -> None:
    policy, rests = warmed(), list[int]()
    for _ in range(7):
        for _ in range(10):
            policy.verified(of_match(8), 5, 0, 1.5)
        rest = 0
        while not policy.drafts:
            policy.stepped(1.0)
            rest += 1
        rests.append(rest - 3)
    assert rests == [32, 64, 128, 256, 512, 512, 512]


def test_a_step_that_cannot_be_told_apart_is_not_measured() -> None:
    policy = Policy(StepCosts())
    policy.stepped(None)
    policy.stepped(None)
    assert not policy.drafts


def test_what_gains_most_is_chosen_whoever_offers_it() -> None:
    policy, model = warmed(), of_model(passes=1)
    assert policy.choose([of_match(20), model])[0].kind == "match of 20"
    assert policy.choose([of_match(2), model])[0].kind == "model"
    assert policy.choose([]) is None


def test_no_more_is_drafted_than_offered_and_all_of_it_may_be() -> None:
    for most in range(1, 9):
        assert width_of(warmed(costs_of(0.001)), of_model(most=most)) == most


def test_drafts_that_a_grammar_refuses_are_wrong_and_have_cost_what_they_took() -> None:
    policy, offer = warmed(), of_model(passes_each=1)
    refused = 0
    while width := width_of(policy, offer):
        policy.refused(offer, width, 0.3 * width)
        refused += 1
    assert 0 < refused < 10
    costs = StepCosts()
    policy = warmed(costs)
    for _ in range(20):  # of eight that were made, the grammar allows three
        policy.verified(offer, 3, 3, 1.2, drafting=0.8, refused=5)
    assert abs(costs.drafting - 0.1) < 0.01
    assert width_of(policy, offer) < 8


def test_what_a_grammar_forces_is_left_alone_where_it_costs_more_than_steps() -> None:
    policy = warmed()
    assert policy.forced_pay(3)
    for _ in range(20):
        policy.verified_forced(3, 3, 12.0)
    assert not policy.forced_pay(3)
    assert policy.forced_pay(15)


def test_forced_drafts_before_any_step_say_nothing_of_costs() -> None:
    costs = StepCosts()
    policy, before = Policy(costs), costs.of(4)
    for _ in range(2):
        policy.verified_forced(3, 3, 12.0)
    assert costs.of(4) == before


def test_drafts_that_cost_as_much_as_steps_are_not_made() -> None:
    costs, offer = StepCosts(), of_model(passes_each=1)
    policy = warmed(costs)
    for _ in range(30):
        if width := width_of(policy, offer):
            policy.verified(offer, width, width, 1.0, drafting=1.0 * width)
    assert costs.drafting > 0.5
    assert width_of(warmed(costs, tokens=20), offer) == 0
    assert width_of(warmed(costs, tokens=20), of_match(20)) > 0


def test_the_cheaper_each_draft_the_more_are_made() -> None:
    widths: list[int] = []
    for cost in (0.02, 0.2, 0.4):
        costs = StepCosts()
        for _ in range(30):
            costs.drafted(cost)
        widths.append(width_of(warmed(costs), of_model(passes_each=1)))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_the_time_that_drafting_takes_is_part_of_the_round() -> None:
    policy, offer = warmed(), of_model(passes=1)
    for _ in range(10):
        policy.verified(offer, 5, 1, 1.1, drafting=1.2)
    assert not policy.drafts  # what costs 2.3 steps brought two tokens: three steps decide


def test_few_right_drafts_are_not_doubted_where_they_clearly_pay() -> None:
    policy, offer = warmed(), of_model(passes=1)
    for _ in range(50):
        policy.verified(offer, 7, 1, 1.2, drafting=0.2)
        assert policy.drafts


def test_what_did_not_pay_is_tried_again_after_a_while() -> None:
    policy, offer = warmed(tokens=5), of_match(8)
    while width := width_of(policy, offer):
        policy.verified(offer, width, 0, 1.2)
        if not policy.drafts:
            policy.stepped(1.0)
    steps = 0
    while not width_of(policy, offer):
        policy.stepped(1.0)
        steps += 1
    assert 10 < steps < 500


def test_a_pass_that_was_disturbed_is_not_held_against_its_width_for_long() -> None:
    """As when MLX compiles for it, or the machine had other things to do."""
    costs, offer = StepCosts(), of_match(8)
    policy = warmed(costs)
    for rows in range(2, 17):
        for _ in range(2):  # the first of a width never counts
            policy.verified(offer, rows - 1, rows - 1, 100.0)
    assert all(costs.of(rows) < 5 for rows in range(2, 17))
    before = costs.of(8)
    for _ in range(500):
        policy.stepped(1.0)
    assert costs.of(8) < before


def test_how_often_a_drafter_with_weights_is_right_is_known_to_the_next_run() -> None:
    costs, offer, match = StepCosts(), of_model(passes=1), of_match(8)
    policy = warmed(costs)
    for _ in range(300):
        policy.verified(offer, 5, 0, 1.2, drafting=0.1)
        policy.verified(match, 5, 0, 1.2)
    assert width_of(warmed(costs), offer) == 0
    assert width_of(warmed(costs), match) > 0  # another text is another matter


def test_what_serial_steps_have_shown_to_pay_is_not_doubted_again_at_once() -> None:
    policy, offer = warmed(), of_match(8)
    doubts = list[int]()
    for number in range(300):
        policy.verified(offer, 5, 1, 1.8)
        if not policy.drafts:
            doubts.append(number)
        while not policy.drafts:
            policy.stepped(1.0)
    apart = [after - before for before, after in itertools.pairwise(doubts)]
    assert apart == sorted(apart)
    assert apart[0] > 8
    assert policy.pauses == 0

"""When drafts are tried, and when they are left alone: by what was measured, and nothing else."""

from models.speculation.policy import Policy, StepCosts


def warmed(costs: StepCosts | None = None, serial: float = 1.0) -> Policy:
    policy = Policy(costs or StepCosts())
    while not policy.drafts:
        policy.stepped(serial)
    return policy


def rounds(policy: Policy, count: int, share: float, seconds: float, match: int = 8) -> None:
    for _ in range(count):
        if width := policy.width(match):
            policy.verified(match, width, round(share * width), seconds)


def test_it_begins_with_two_steps_whatever_may_be_drafted() -> None:
    policy = Policy(StepCosts())
    for _ in range(2):
        assert not policy.drafts
        policy.stepped(0.1)
    assert policy.drafts


def test_the_longer_the_match_the_more_is_drafted() -> None:
    widths = [warmed().width(match) for match in (2, 4, 8, 20)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == 15


def test_drafts_that_are_right_are_followed_by_more() -> None:
    policy = warmed()
    first = policy.width(4)
    rounds(policy, 10, 1.0, 1.2, match=4)
    assert policy.width(4) > first


def test_drafts_that_are_wrong_are_followed_by_fewer() -> None:
    policy = warmed()
    first = policy.width(8)
    rounds(policy, 4, 0.0, 1.2)
    assert policy.width(8) < first


def test_passes_that_cost_what_their_rows_cost_are_not_made() -> None:
    """As with a product that reads the weights for each row."""
    costs = StepCosts()
    policy = warmed(costs)
    for _ in range(40):
        if width := policy.width(20):
            policy.verified(20, width, width, 1.0 + width)
    assert warmed(costs).width(20) == 0


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
    assert slow.width(8) == fast.width(8)


def test_few_right_drafts_are_given_up_when_steps_are_faster() -> None:
    policy = warmed()
    for _ in range(10):  # two of warm-up, eight measured
        assert policy.drafts
        policy.verified(8, 5, 0, 1.5)
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
        policy.verified(8, 5, 2, 1.5)
    for _ in range(3):
        policy.stepped(1.0)
    assert policy.drafts
    assert policy.pauses == 0


def test_what_was_given_up_twice_rests_for_longer() -> None:
    policy, rests = warmed(), list[int]()
    for _ in range(7):
        for _ in range(10):
            policy.verified(8, 5, 0, 1.5)
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

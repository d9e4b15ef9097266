"""What the disk tier keeps, finds again, and gives up."""

import os
import time
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.prefix_cache.disk import DiskTier, End
from models.prefix_cache.disk_file import read_piece
from tests.models.prefix_cache.disk_states import files, keep, piece, served, tier
from tests.support.lives import until

IDS = [(7 * i) % 1000 for i in range(200)]

TOKENS = 1000  # of a piece, where sizes matter


def room_for(pieces: int) -> int:
    """Of so many tokens, with what their files have beside the arrays and ids; not for another."""
    return pieces * (10 * TOKENS + 1_200) + 4_000


def assert_within(limit: int, disk: DiskTier, folder: Path) -> None:
    held = sum(file.stat().st_size for file in files(folder))
    assert disk.facts()["held_bytes"] == held <= limit


def promised(disk: DiskTier, ids: list[int]) -> dict[int, float]:
    """For how many seconds still, by the position; whole seconds upwards."""
    promises = disk.find("key", array("I", ids), len(ids)).promises
    return {each.tokens: each.expires - time.monotonic() for each in promises}


def reopened(disk: DiskTier, folder: Path, **more: int) -> DiskTier:
    disk.close()
    return tier(folder, **more)


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    keep(disk, IDS, [50, 120, 200])
    disk = reopened(disk, tmp_path)

    assert served(disk, IDS) == 200
    assert served(disk, [*IDS, 1, 2, 3]) == 200
    assert served(disk, IDS, limit=130) == 130
    assert served(disk, [*IDS[:100], 1, 2, 3]) == 100
    assert served(disk, [1, *IDS]) == 0
    facts = disk.facts()
    assert (facts["on"], facts["why"], facts["files"], facts["dropped"]) == (True, None, 3, 0)
    assert facts["held_bytes"] == sum(file.stat().st_size for file in files(tmp_path))


def test_what_cannot_be_cut_is_served_up_to_its_points(tmp_path: Path) -> None:
    disk = tier(tmp_path, sliceable=False)
    ends = [End(50, True), End(120, False), End(200, True)]
    disk.store("key", array("I", IDS), ends, lambda start, end: piece(IDS, start, end))
    disk.close()
    disk = tier(tmp_path, sliceable=False)

    assert served(disk, IDS) == 200
    assert served(disk, IDS, limit=199) == 50
    assert served(disk, [*IDS[:130], 1, 2, 3]) == 50
    assert served(disk, IDS[:49]) == 0


def test_a_point_that_was_missing_is_added(tmp_path: Path) -> None:
    disk = tier(tmp_path, sliceable=False)
    keep(disk, IDS, [120, 200])
    keep(disk, IDS, [120, 200], points=True)
    disk.close()
    disk = tier(tmp_path, sliceable=False)

    assert served(disk, IDS, limit=150) == 120
    assert disk.facts()["files"] == 2


@pytest.mark.parametrize("other", ["scope", "identity"])
def test_another_scope_or_model_finds_nothing(tmp_path: Path, other: str) -> None:
    disk = tier(tmp_path)
    keep(disk, IDS, [], 300)
    if other == "identity":
        disk.close()
        disk = tier(tmp_path, identity="1" * 64)
    found = disk.find("other" if other == "scope" else "key", array("I", IDS), len(IDS))

    assert (found.tokens, found.chain, found.promises) == (0, (), ())


def test_nothing_is_written_twice(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    for _ in range(3):
        keep(disk, IDS, [50, 200], 300)
    keep(disk, IDS, [50, 200])
    disk.close()

    assert disk.facts()["written"] == 2


def test_a_prompt_that_parts_in_a_piece_is_served_whole(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    other = [*IDS[:90], *range(1000, 1100)]
    keep(disk, IDS)
    keep(disk, other, [90, 190])
    disk = reopened(disk, tmp_path)

    assert served(disk, IDS) == 200
    assert served(disk, other) == 190


def test_prompts_that_part_in_a_piece_hang_below_what_they_share(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    other = [*IDS[:90], *range(1000, 1200)]
    keep(disk, IDS, [50, 100])
    keep(disk, other)
    disk.close()

    assert served(disk, other) == 290
    assert served(disk, [*IDS[:100], *other[100:]]) == 100
    assert disk.facts()["dropped"] == 0


def test_a_prompt_that_grows_is_written_once(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    for end in range(10, 200, 10):
        keep(disk, IDS[:end], [])
        keep(disk, IDS[: end + 5], [end, end + 5], 300)
    disk = reopened(disk, tmp_path)

    assert served(disk, IDS) == 195
    lengths = [len(read_piece(file).ids) for file in files(tmp_path)]
    assert sum(lengths) <= 2 * 195  # some twice, for the sake of what was promised later


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=12),
            st.sets(st.integers(1, 12), max_size=3),
        ),
        min_size=1,
        max_size=6,
    ),
    asked=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    sliceable=st.booleans(),
)
def test_the_longest_prefix_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    prompts: list[tuple[list[int], set[int]]],
    asked: list[int],
    sliceable: bool,
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    disk = tier(folder, sliceable=sliceable)
    kept: list[list[int]] = []
    for ids, cuts in prompts:
        ends = sorted({*(cut for cut in cuts if cut < len(ids)), len(ids)})
        keep(disk, ids, ends, points=True)
        kept += [ids[:end] for end in (range(len(ids) + 1) if sliceable else ends)]
    disk.close()

    best = max((len(each) for each in kept if asked[: len(each)] == each), default=0)
    assert served(tier(folder, sliceable=sliceable), asked) == best


def test_the_least_recently_used_goes_first_but_never_what_others_hang_below(
    tmp_path: Path,
) -> None:
    disk = tier(tmp_path, room_for(4))
    shared = [0] * TOKENS
    kept = [[*shared, *([number] * TOKENS)] for number in range(1, 5)]
    for each in kept[:3]:
        keep(disk, each, [TOKENS, 2 * TOKENS])
    keep(disk, kept[0], [TOKENS, 2 * TOKENS])  # used again
    disk = reopened(disk, tmp_path, limit_bytes=room_for(4))
    assert [served(disk, each) for each in kept] == [2 * TOKENS] * 3 + [TOKENS]
    keep(disk, kept[3], [TOKENS, 2 * TOKENS])
    disk.close()

    assert [served(disk, each) // TOKENS for each in kept] == [2, 1, 2, 2]
    assert_within(room_for(4), disk, tmp_path)


def test_promises_outlast_what_is_not_promised(tmp_path: Path) -> None:
    disk = tier(tmp_path, room_for(2))
    first, *others = ([number] * TOKENS for number in range(6))
    keep(disk, first, [], 300)
    for each in others:
        keep(disk, each)
    disk.close()

    assert [served(disk, each) for each in (first, others[0], others[-1])] == [TOKENS, 0, TOKENS]
    assert_within(room_for(2), disk, tmp_path)


def test_states_of_other_models_count_too(tmp_path: Path) -> None:
    other = tier(tmp_path, identity="1" * 64)
    keep(other, [1] * TOKENS)
    other.close()
    disk = tier(tmp_path, room_for(1))
    assert disk.facts()["files"] == 1
    keep(disk, [1] * TOKENS)
    disk.close()

    assert served(disk, [1] * TOKENS) == TOKENS
    assert disk.facts()["files"] == 1
    assert_within(room_for(1), disk, tmp_path)


def test_a_smaller_limit_holds_from_the_start(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    for number in range(5):
        keep(disk, [number] * TOKENS)
    disk = reopened(disk, tmp_path, limit_bytes=room_for(2))

    assert_within(room_for(2), disk, tmp_path)
    assert [served(disk, [number] * TOKENS) for number in range(5)] == [0, 0, 0, TOKENS, TOKENS]


def test_what_can_never_fit_is_not_written(tmp_path: Path) -> None:
    disk = tier(tmp_path, 1_000)
    keep(disk, IDS)
    disk.close()

    assert (disk.facts()["skipped"], files(tmp_path)) == (1, [])


@pytest.mark.parametrize("sliceable", [True, False])
def test_what_is_too_much_for_a_slow_disk_is_kept_bit_by_bit(
    tmp_path: Path, sliceable: bool
) -> None:
    disk = tier(tmp_path, waiting_bytes=1_000, sliceable=sliceable)
    for _ in range(10):
        keep(disk, IDS, [], 300, points=True)
        until(lambda: disk.facts()["files"] > 0)
    disk.close()

    assert served(disk, IDS) == 200
    assert promised(disk, IDS).keys() == {200}
    facts = disk.facts()
    assert facts["files"] == facts["written"] > 1


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path) -> None:
    disk = tier(tmp_path, waiting_bytes=100)
    keep(disk, [1])
    disk.close()
    assert disk.facts()["written"] == 1
    disk = tier(tmp_path / "other", waiting_bytes=9)
    keep(disk, [1])
    disk.close()

    assert (disk.facts()["written"], disk.facts()["skipped"]) == (0, 1)


def test_a_promise_outlives_a_restart_and_no_longer_than_it_was_given(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    keep(disk, IDS, [100], 300)
    keep(disk, IDS, [100, 200], 3600)
    disk = reopened(disk, tmp_path)

    assert promised(disk, IDS) == {
        100: pytest.approx(3600, abs=60),
        200: pytest.approx(3600, abs=60),
    }
    long_ago = time.time() - 3000
    for file in files(tmp_path):
        os.utime(file, (long_ago, long_ago))
    disk = reopened(disk, tmp_path)
    assert promised(disk, IDS)[200] == pytest.approx(600, abs=60)
    keep(disk, IDS, [100, 200], 3600)
    disk = reopened(disk, tmp_path)
    assert promised(disk, IDS)[200] == pytest.approx(3600, abs=60)


def test_a_promise_that_has_expired_is_none_but_its_state_is_of_use(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    keep(disk, IDS, [], 300)
    disk.close()
    (file,) = files(tmp_path)
    os.utime(file, (0, 0))
    disk = tier(tmp_path)
    assert promised(disk, IDS) == {}
    assert served(disk, IDS) == 200
    keep(disk, IDS)  # a run that promises nothing
    disk = reopened(disk, tmp_path)

    assert promised(disk, IDS) == {}
    keep(disk, IDS, [], 300)
    disk.close()
    assert promised(disk, IDS).keys() == {200}


def test_a_clock_that_was_wrong_lengthens_no_promise(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    keep(disk, IDS, [], 300)
    disk.close()
    (file,) = files(tmp_path)
    next_year = time.time() + 365 * 86400
    os.utime(file, (next_year, next_year))
    disk = tier(tmp_path)

    assert promised(disk, IDS) == {200: pytest.approx(300, abs=60)}
    assert file.stat().st_mtime < time.time() + 60  # or the next start would promise it again


def test_a_promise_that_is_read_begins_anew(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    keep(disk, IDS, [], 300)
    disk.close()
    (file,) = files(tmp_path)
    long_ago = time.time() - 200
    os.utime(file, (long_ago, long_ago))
    disk = tier(tmp_path)
    assert promised(disk, IDS) == {200: pytest.approx(100, abs=60)}
    disk.refresh(disk.find("key", array("I", IDS), 200).promises)
    disk = reopened(disk, tmp_path)

    assert promised(disk, IDS) == {200: pytest.approx(300, abs=60)}

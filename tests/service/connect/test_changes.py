import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.connect.changes import Undo, value_of, with_ours, without_ours

KEYS = ("env.URL", "env.MODEL", "env.EFFORT", "helper", "permissions.mode")
SCALARS = st.sampled_from(["", "a", "b", None, 1])
INSIDE = st.dictionaries(st.sampled_from(["URL", "MODEL", "EFFORT", "mode", "theirs"]), SCALARS)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "permissions": INSIDE.filter(bool),  # an empty object is as good as none
        "theirs": INSIDE,
        "env": INSIDE.filter(bool),
        "helper": SCALARS,
    },
)
WANTED = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["a", "b", "c"]), min_size=1)


@given(SETTINGS, st.lists(WANTED, min_size=1, max_size=4))
def test_however_often_ours_changed_what_was_before_comes_back(
    before: dict[str, Any], steps: list[dict[str, str]]
) -> None:
    settings, undo = before, Undo()
    for wanted in steps:
        changed = with_ours(settings, wanted, undo)
        assert all(value_of(changed.settings, key) == wanted[key] for key in wanted)
        again = with_ours(changed.settings, wanted, changed.undo)
        assert (again.settings, again.undo, again.kept) == (changed.settings, changed.undo, ())
        settings, undo = changed.settings, Undo.model_validate_json(changed.undo.model_dump_json())
    undone = without_ours(settings, undo)
    assert undone.settings == before
    assert not undone.kept


@given(SETTINGS, WANTED)
def test_a_change_that_was_noted_and_never_made_is_undone_by_nothing(
    before: dict[str, Any], wanted: dict[str, str]
) -> None:
    noted = with_ours(before, wanted, Undo()).undo
    assert without_ours(before, noted).settings == before


@given(SETTINGS, WANTED, st.sampled_from(KEYS), SCALARS)
def test_what_somebody_else_changed_meanwhile_is_kept_and_told(
    before: dict[str, Any], wanted: dict[str, str], key: str, value: Any
) -> None:
    changed = with_ours(before, wanted, Undo())
    by_hand = with_ours(changed.settings, {key: value}, Undo()).settings
    undone = without_ours(by_hand, changed.undo)
    if value not in (wanted.get(key), value_of(before, key, value)):
        assert value_of(undone.settings, key) == value
        assert undone.kept == ((key,) if key in wanted else ())


@given(SETTINGS, WANTED)
def test_keys_keep_their_places(before: dict[str, Any], wanted: dict[str, str]) -> None:
    changed = with_ours(before, wanted, Undo()).settings
    assert list(changed)[: len(before)] == list(before)
    assert json.dumps(changed.get("theirs")) == json.dumps(before.get("theirs"))

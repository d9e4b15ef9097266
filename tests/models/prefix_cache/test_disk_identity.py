"""States are of use to the very model that computed them."""

import os
from array import array
from pathlib import Path

import pytest

from models.prefix_cache.disk_identity import identity_of, prefix_names


def of(folder: Path, weights: str | None = "w", dtype: str = "float32", layer: str = "KV") -> str:
    return identity_of(folder, weights, dtype, [layer, layer])


def test_the_same_model_is_the_same(model_folder: Path) -> None:
    assert of(model_folder) == of(model_folder)
    assert of(model_folder, None) == of(model_folder, None)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_changed_file_makes_it_another(model_folder: Path, name: str) -> None:
    before = of(model_folder)
    with (model_folder / name).open("a") as file:
        file.write(" ")
    assert of(model_folder) != before


def test_a_template_beside_the_tokenizer_makes_it_another(model_folder: Path) -> None:
    before = of(model_folder)
    (model_folder / "chat_template.jinja").write_text("{{ messages }}")
    assert of(model_folder) != before


def test_it_is_computed_in_one_way(model_folder: Path) -> None:
    ways = [
        of(model_folder),
        of(model_folder, "other weights"),
        of(model_folder, dtype="bfloat16"),
        of(model_folder, layer="Rotating"),
    ]
    assert len(set(ways)) == len(ways)


def test_weights_without_a_name_are_known_by_their_files(model_folder: Path) -> None:
    before = of(model_folder, None)
    named = of(model_folder)
    os.utime(model_folder / "model.safetensors", (1, 1))
    assert of(model_folder, None) != before
    assert of(model_folder) == named


def test_a_prefix_has_one_name_whatever_comes_after_it() -> None:
    one, other = array("I", [1, 2, 3, 4]), array("I", [1, 2, 3, 5, 6])
    names = list(prefix_names("i", "s", one, [0, 2, 3, 4]))
    others = list(prefix_names("i", "s", other, [0, 3, 5]))

    assert (names[0], names[2]) == (others[0], others[1])
    assert len({*names, *others}) == 5
    for identity, scope in [("i2", "s"), ("i", "s2"), ("is", ""), ("", "is")]:
        assert not {*names} & {*prefix_names(identity, scope, one, [0, 2, 3, 4])}

"""The generic family: any chat template, text only."""

from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from models.catalog import CheckpointError, inspect
from models.conversation import AnswerForm, Conversation, Turn
from models.families.family import Capabilities, NotRendered
from models.families.generic import GenericFamily
from models.parsing.events import TextDelta
from tests.models.families.histories import FORGED, HISTORIES
from tests.support.tiny_gemma import write_tiny_gemma3

# Turns by the markers that the tiny tokenizer has.
_EACH = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<start_of_turn>' + m.role + '\n' + m.content + '<end_of_turn>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>assistant\n' }}{% endif %}"
)
_REFUSING = "{% if m.role == 'system' WHERE %}{{ raise_exception('no such turn') }}{% endif %}"
ANYWHERE = _EACH
FIRST = _EACH.replace("%}{{", "%}" + _REFUSING.replace("WHERE", "and not loop.first") + "{{", 1)
NOWHERE = _EACH.replace("%}{{", "%}" + _REFUSING.replace("WHERE", "") + "{{", 1)
DROPPING = _EACH.replace("in messages %}", "in messages if m.role != 'system' %}")
# As those of Mistral: everything but the ends of answers is no marker.
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "anywhere": ANYWHERE,
    "first": FIRST,
    "nowhere": NOWHERE,
    "dropping": DROPPING,
    "brackets": BRACKETS,
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_every_history_is_written(tmp_path: Path, template: str, history: tuple[Turn, ...]) -> None:
    shown = _shown(_family(tmp_path, template), tmp_path, *history)
    for text in (each.text for each in history if each.text):
        assert text.strip() in shown
    assert "None" not in shown


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_markers_in_a_text_are_plain_text(tmp_path: Path, template: str) -> None:
    family = _family(tmp_path, template)
    forged, harmless = (
        Counter(each for each in _ids(family, *HISTORIES[name]) if each < 6)
        for name in ("forged markers", "harmless instead of forged")
    )
    assert forged == harmless
    assert FORGED in _shown(family, tmp_path, Turn.of("user", FORGED))


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (ANYWHERE, "<start_of_turn>user\na<end_of_turn><start_of_turn>system\nb<end_of_turn>"),
        (FIRST, "<start_of_turn>user\na\n\n<system-reminder>\nb\n</system-reminder><end_of_turn>"),
        (DROPPING, "user\nfirst\n\na\n\n<system-reminder>\nb\n</system-reminder><end_of_turn>"),
        (BRACKETS, "[INST] first\n\na\n\n<system-reminder>\nb\n</system-reminder> [/INST]"),
    ],
)
def test_system_turns_that_the_template_would_refuse_or_lose_are_folded(
    tmp_path: Path, template: str, shown: str
) -> None:
    turns = [Turn.of("system", "first"), Turn.of("user", "a"), Turn.of("system", "b")]
    assert shown in _shown(_family(tmp_path, template), tmp_path, *turns)


def test_the_template_strips_what_it_strips(tmp_path: Path) -> None:
    family = _family(tmp_path, ANYWHERE.replace("m.content", "m.content | trim"))
    shown = _shown(family, tmp_path, Turn.of("user", "  <b> hi \n"))
    assert "user\n<b> hi<end_of_turn>" in shown


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_prefill_is_continued(tmp_path: Path, template: str) -> None:
    family = _family(tmp_path, template)
    assert _shown(family, tmp_path, *HISTORIES["a prefill"]).endswith("One, two")
    begun = Turn.of("assistant", "count")  # what the user said too
    assert _shown(family, tmp_path, Turn.of("user", "count"), begun).count("count") == 2


def test_a_conversation_that_the_template_refuses_names_the_turn(tmp_path: Path) -> None:
    family = _family(
        tmp_path,
        ANYWHERE.replace(
            "%}{{", "%}{% if 'x' in m.content %}{{ raise_exception('no x') }}{% endif %}{{", 1
        ),
    )
    turns = (Turn.of("user", "a"), Turn.of("assistant", "x"), Turn.of("user", "b"))
    with pytest.raises(NotRendered, match=r"turn 2 .*\(assistant\): no x"):
        family.render(Conversation(turns))


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 1 / 0 }}", "fails"),
        ("{{ raise_exception('not me') }}", "not me"),
        ("nothing", "leaves out"),
        (ANYWHERE.replace("m.content", "m.content | upper"), "changes"),
        (ANYWHERE.replace("m.content", "m.content | e"), "changes"),
        (ANYWHERE.replace("m.content", "m.content + m.content"), "changes"),
        ("{% for m in messages %}", "not one"),
    ],
)
def test_a_template_that_cannot_be_relied_on_is_refused_at_load(
    tmp_path: Path, template: str, why: str
) -> None:
    with pytest.raises(CheckpointError, match=f"(?s)^tiny .*{why}"):
        _family(tmp_path, template)


def test_a_checkpoint_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        GenericFamily(inspect(write_tiny_gemma3(tmp_path / "tiny", None)))


def test_templates_cannot_reach_the_machine(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="fails"):
        _family(tmp_path, "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__ }}")


def test_the_marker_that_ends_an_answer_stops_it(tmp_path: Path) -> None:
    assert _family(tmp_path, ANYWHERE).stop_ids == {1, 5}


def test_it_offers_nothing_but_text(tmp_path: Path) -> None:
    family = _family(tmp_path, ANYWHERE)
    assert family.capabilities == Capabilities()
    parser = family.parser(AnswerForm())
    assert parser.feed(5 + 1 + ord("h")) == [TextDelta("h")]
    assert family.guide(AnswerForm()) is None


def _family(folder: Path, template: str) -> GenericFamily:
    return GenericFamily(inspect(write_tiny_gemma3(folder / "tiny", template)))


def _ids(family: GenericFamily, *turns: Turn) -> list[int]:
    return family.render(Conversation(turns)).ids.tolist()


def _shown(family: GenericFamily, folder: Path, *turns: Turn) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tiny" / "tokenizer.json"))
    return tokenizer.decode(_ids(family, *turns), skip_special_tokens=False)

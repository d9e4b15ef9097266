"""Companions of a tiny target: made in seconds, on the CPU, where torch is installed."""

import itertools
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from models.speculation.companion_config import CompanionConfig
from models.speculation.dflash import DFlash

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tools.companion.acceptance import acceptance  # noqa: E402
from tools.companion.drafter import Drafter, Plan  # noqa: E402
from tools.companion.generation import Text, generate  # noqa: E402
from tools.companion.target import Target  # noqa: E402
from tools.companion.template import Template  # noqa: E402
from tools.companion.training import (  # noqa: E402
    block_loss,
    draft_vocabulary,
    sizes_of,
    train,
)
from tools.train_companion import main, target_layers  # noqa: E402

_TAPS = (0, 1)


@pytest.fixture(scope="module")
def target(tiny: Path) -> Target:
    return Target(tiny, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def text(tiny: Path, target: Target) -> Text:
    torch.manual_seed(1)
    return generate(target, Template.of(tiny), _TAPS, 16, 256, 0, lambda what: None)


@pytest.fixture(scope="module")
def cycles(target: Target) -> Text:
    """Text that can be learned: twelve tokens in turn, in answers of 40."""
    ids = (torch.arange(64) + torch.arange(8)[:, None]) % 12 + 60
    answer = (torch.arange(64) % 48 >= 8).expand(8, -1)
    _, features = target(ids, torch.arange(64), target.cache(8, 64), 64, _TAPS)
    return Text(ids, answer, features, torch.ones(8, dtype=torch.bool))


def _drafter(target: Target, text: Text) -> Drafter:
    torch.manual_seed(2)
    plan = Plan(2, _TAPS, mask_id=256)
    return Drafter(target, plan, draft_vocabulary(text, 259, 200), sizes_of(text))


def _train(drafter: Drafter, text: Text, steps: int) -> int:
    clock = itertools.count()  # each look at it is a second
    return train(
        drafter,
        text,
        batch=8,
        anchors=8,
        learning_rate=3e-2,
        seconds=steps,
        save=lambda: None,
        say=lambda what: None,
        clock=lambda: next(clock),
    )


@pytest.fixture(scope="module")
def trained(target: Target, cycles: Text) -> Drafter:
    drafter = _drafter(target, cycles)
    assert _train(drafter, cycles, 60) == 59
    return drafter


def test_the_target_computes_what_mlx_lm_does(tiny: Path, target: Target) -> None:
    ids = np.random.default_rng(0).integers(0, 256, (2, 24))
    model, _ = load_model(tiny)

    logits, _ = target(torch.tensor(ids), torch.arange(24), target.cache(2, 32), 32, _TAPS)

    np.testing.assert_allclose(logits.numpy(), np.array(model(mx.array(ids))), atol=1e-3)


def test_steps_compute_what_one_pass_does(target: Target) -> None:
    ids = torch.arange(40, 64).view(2, 12)
    cache = target.cache(2, 16)

    steps = [target(ids[:, at : at + 1], torch.tensor([at]), cache, 16, _TAPS) for at in range(12)]

    logits, features = target(ids, torch.arange(12), target.cache(2, 12), 12, _TAPS)
    torch.testing.assert_close(
        torch.cat([each[0] for each in steps], 1), logits, atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        torch.cat([each[1] for each in steps], 1), features, atol=1e-4, rtol=1e-4
    )


def test_conversations_have_the_frame_of_the_template(tiny: Path, text: Text) -> None:
    template = Template.of(tiny)
    ends = (template.end, *template.before_answer)

    for row, answer in zip(text.ids.tolist(), text.answer.tolist(), strict=True):
        assert tuple(row[: len(template.before_question)]) == template.before_question
        if True in answer:
            first = answer.index(True)
            assert tuple(row[first - len(ends) : first]) == ends


def test_half_of_the_answers_are_the_likeliest_tokens(target: Target, text: Text) -> None:
    ids = text.ids[text.greedy]

    logits, _ = target(ids, torch.arange(256), target.cache(8, 256), 256, _TAPS)

    logits[:, :, [256, 257]] = -torch.inf  # what conversations do not have
    likeliest = logits.argmax(-1)[:, :-1]
    answers = text.answer[text.greedy][:, 1:]
    assert answers.any()
    assert (likeliest == ids[:, 1:])[answers].all()


def test_a_block_sees_what_is_before_its_anchor_and_itself(target: Target, text: Text) -> None:
    drafter = _drafter(target, text)
    anchors, ids = torch.tensor([[20, 50]]), torch.tensor([[65, 66]])
    seen = drafter(anchors, ids, text.features[:1])

    later, before, other = text.features[:1].clone(), text.features[:1].clone(), ids.clone()
    later[:, 20:] += 1.0
    before[:, 19] += 1.0
    other[:, 1] = 67

    assert torch.equal(drafter(anchors, ids, later)[:, 0], seen[:, 0])
    assert not torch.allclose(drafter(anchors, ids, later)[:, 1], seen[:, 1])
    assert not torch.allclose(drafter(anchors, ids, before)[:, 0], seen[:, 0])
    assert torch.equal(drafter(anchors, other, text.features[:1])[:, 0], seen[:, 0])
    assert not torch.allclose(drafter(anchors, other, text.features[:1])[:, 1], seen[:, 1])


def test_the_loss_falls(target: Target, cycles: Text, trained: Drafter) -> None:
    torch.manual_seed(3)

    assert block_loss(trained, cycles, 8) < 0.5 * block_loss(_drafter(target, cycles), cycles, 8)


def test_acceptance_is_what_drafting_round_by_round_gives(trained: Drafter, cycles: Text) -> None:
    rounds: list[tuple[int, int]] = []
    for row in range(len(cycles)):
        ids, answer = cycles.ids[row].tolist(), cycles.answer[row].tolist()
        place = 0
        while place + 8 < len(ids):
            if not (answer[place] and answer[place + 1]):
                place += 1
                continue
            with torch.no_grad():
                logits = trained(
                    torch.tensor([[place]]),
                    torch.tensor([[ids[place]]]),
                    cycles.features[row : row + 1, :place],
                )
            drafts = trained.draft_ids[logits[0, 0].argmax(-1)].tolist()
            held = 0
            while held < 7 and answer[place + 1 + held] and ids[place + 1 + held] == drafts[held]:
                held += 1
            rounds.append((held, sum(answer[place + 1 : place + 2 + held])))
            place += held + 1

    result = acceptance(trained, cycles, 60)

    assert result.rounds == len(rounds)
    assert result.length == pytest.approx(sum(tokens for _, tokens in rounds) / len(rounds))
    assert result.by_position[0] == pytest.approx(sum(held > 0 for held, _ in rounds) / len(rounds))
    assert result.length > 4


def test_the_engine_drafts_the_same_from_what_was_written(
    trained: Drafter, target: Target, cycles: Text, tmp_path: Path
) -> None:
    trained.save(tmp_path, "f" * 64)

    weights = mx.load(str(tmp_path / "model.safetensors"))
    draft_ids = weights.pop("draft_ids")
    network = DFlash(CompanionConfig.of(json.loads((tmp_path / "config.json").read_text())))
    network.load_weights(list(weights.items()))
    network.set_dtype(mx.float32)
    embedding = mx.array(target.embedding.numpy())
    block = mx.array([[int(cycles.ids[0, 30]), *[trained.plan.mask_id] * 7]])
    context = network.context(0)
    network.extend(mx.array(cycles.features[:1, :30].numpy()), context)
    hidden = network(embedding[block], mx.array(30), context)[0, 1:]
    drafts = draft_ids[mx.argmax(hidden @ embedding[draft_ids].T, axis=-1)]

    with torch.no_grad():
        logits = trained(torch.tensor([[30]]), cycles.ids[:1, 30:31], cycles.features[:1])
    assert drafts.tolist() == trained.draft_ids[logits[0, 0].argmax(-1)].tolist()
    assert drafts.tolist() == cycles.ids[0, 31:38].tolist()


def test_the_tool_writes_a_companion_and_its_recipe(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--rows 16 --length 192 --held-out 8 --batch 4 --anchors 4 --layers 1"
    short = "--generate-seconds 0 --train-seconds 0.2 --evaluate-seconds 1"
    layers = "--target-layers 0,1 --draft-vocabulary 100"

    assert main([str(tiny), str(tmp_path), *f"{small} {short} {layers}".split()]) == 0

    config = json.loads((tmp_path / "config.json").read_text())
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"]["target_layer_ids"] == [0, 1]
    assert recipe["conversations"] == 16
    assert recipe["evaluation"] == json.loads(capsys.readouterr().out)
    assert len(load_file(tmp_path / "model.safetensors")["draft_ids"]) == 100


def test_a_folder_that_is_no_llama_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')

    assert main([str(tmp_path), str(tmp_path / "out")]) == 1

    assert "only llamas" in capsys.readouterr().err


def test_target_layers_are_those_of_the_paper() -> None:
    assert target_layers(36, 5) == (1, 9, 17, 25, 33)
    assert target_layers(30, 3) == (1, 14, 27)

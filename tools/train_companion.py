"""`tools/train-companion TARGET OUTPUT`: makes a companion, a small model that drafts for a llama.

The target writes conversations with itself; a DFlash drafter learns to say the next tokens of its
answers at once; conversations that it did not learn from tell how many of its drafts hold. It
needs torch, and takes minutes on a large GPU; each part has a time of its own.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tools.companion.acceptance import acceptance
from tools.companion.drafter import Drafter, Plan
from tools.companion.errors import CannotTrain
from tools.companion.generation import Text, generate
from tools.companion.target import Target
from tools.companion.template import Template
from tools.companion.training import draft_vocabulary, sizes_of, train


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        recipe = _make(options)
    except CannotTrain as why:
        print(f"train-companion: {why}", file=sys.stderr)
        return 1
    print(json.dumps(recipe["evaluation"], indent=2))
    return 0


def _make(options: argparse.Namespace) -> dict[str, Any]:
    """Writes the companion and `recipe.json`, which it returns."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    target = Target(options.target, device, torch.bfloat16 if cuda else torch.float32)
    template = Template.of(options.target)
    taps = options.target_layers or target_layers(target.layers, 3)
    seconds: dict[str, float] = {}

    say, done = _sayer("generate")
    learned, held_out = _apart(
        generate(
            target, template, taps, options.rows, options.length, options.generate_seconds, say
        ),
        options.held_out,
    )
    seconds["generate"] = done()

    say, done = _sayer("train")
    draft_ids = draft_vocabulary(learned, target.vocabulary, options.draft_vocabulary)
    plan = Plan(options.layers, taps, template.unused)
    drafter = Drafter(target, plan, draft_ids, sizes_of(learned))
    digest = _sha256(options.target)
    steps = train(
        drafter,
        learned,
        batch=options.batch,
        anchors=options.anchors,
        learning_rate=options.learning_rate,
        seconds=options.train_seconds,
        save=lambda: drafter.save(options.output, digest),
        say=say,
    )
    seconds["train"] = done()

    say, done = _sayer("evaluate")
    evaluation = {
        "greedy": asdict(
            acceptance(drafter, held_out[held_out.greedy], options.evaluate_seconds / 2)
        ),
        "drawn": asdict(
            acceptance(drafter, held_out[~held_out.greedy], options.evaluate_seconds / 2)
        ),
        "answer_tokens_that_drafts_can_be": torch.isin(held_out.ids[held_out.answer], draft_ids)
        .float()
        .mean()
        .item(),
    }
    seconds["evaluate"] = done()

    recipe = {
        "arguments": {name: _plain(value) for name, value in vars(options).items()},
        "target_sha256": digest,
        "target_layers": list(taps),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "conversations": len(learned) + len(held_out),
        "tokens": learned.ids.numel() + held_out.ids.numel(),
        "answer_tokens": int(learned.answer.sum() + held_out.answer.sum()),
        "steps": steps,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "evaluation": evaluation,
    }
    (options.output / "recipe.json").write_text(json.dumps(recipe, indent=2))
    return recipe


def target_layers(layers: int, count: int) -> tuple[int, ...]:
    """From the second layer to the fourth from the end, evenly: DFlash's choice."""
    return tuple(round(1 + at * (layers - 4) / (count - 1)) for at in range(count))


def _apart(text: Text, held_out: int) -> tuple[Text, Text]:
    """What is learned from, and `held_out` rows that are not, as often greedy as the others."""
    places = torch.arange(len(text), device=text.ids.device)
    held = places % max(2, len(text) // held_out) == 0
    return text[~held], text[held]


def _sha256(folder: Path) -> str:
    """What the receipt of an installed model says; else that of `model.safetensors`."""
    receipt = folder / "receipt.json"
    if receipt.is_file():
        return json.loads(receipt.read_text())["sha256"]
    try:
        with (folder / "model.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CannotTrain(
            f"{folder} has neither receipt.json nor model.safetensors to tell the target by"
        ) from None


def _sayer(part: str) -> tuple[Callable[[str], None], Callable[[], float]]:
    """What tells how a part goes, and what tells the seconds since it began."""
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"{part}: {what}", file=sys.stderr, flush=True)

    def done() -> float:
        return time.monotonic() - started

    return say, done


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Path) else value


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("train-companion", description=__doc__)
    parser.add_argument("target", type=Path, help="folder of the checkpoint to draft for")
    parser.add_argument("output", type=Path, help="folder to write the companion to")
    parser.add_argument("--generate-seconds", type=float, default=60)
    parser.add_argument("--train-seconds", type=float, default=120)
    parser.add_argument("--evaluate-seconds", type=float, default=10)
    parser.add_argument("--rows", type=int, default=2048, help="conversations at once")
    parser.add_argument("--length", type=int, default=512, help="tokens of a conversation")
    parser.add_argument("--held-out", type=int, default=512, help="conversations to evaluate on")
    parser.add_argument("--layers", type=int, default=2, help="the companion's")
    parser.add_argument(
        "--target-layers",
        type=lambda text: tuple(map(int, text.split(","))),
        help="those whose output it reads, ascending, as in 1,14,27",
    )
    parser.add_argument("--draft-vocabulary", type=int, default=8192, help="tokens it can draft")
    parser.add_argument("--batch", type=int, default=64, help="conversations a training step")
    parser.add_argument("--anchors", type=int, default=64, help="blocks of each of them")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Teaches a drafter to say at once what the target said token by token."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.companion.drafter import Drafter
from tools.companion.generation import Text

# How fast a place counts less the later it is: what follows a wrong draft is never used. The paper
# has 4 for blocks of 8.
_GAMMA = 4.0
_WARM_UP = 0.02
_SAY_EVERY_STEPS = 50
_SAVE_EVERY_SECONDS = 20.0


def draft_vocabulary(text: Text, vocabulary: int, size: int) -> Tensor:
    """The ids that answers have most often, ascending; all of the vocabulary if it is smaller."""
    counts = text.ids[text.answer].bincount(minlength=vocabulary)
    return counts.topk(min(size, vocabulary)).indices.sort().values


def sizes_of(text: Text) -> Tensor:
    """How large each value of the features is on average, `[taps * hidden]` in float32; the first
    token's, which are a thousand times larger in a llama (Sun et al., 2024, arXiv 2402.17762), are
    left out."""
    return text.features[:256, 1:].abs().mean((0, 1), dtype=torch.float32).clamp(min=1e-6)


def train(
    drafter: Drafter,
    text: Text,
    *,
    batch: int,
    anchors: int,
    learning_rate: float,
    seconds: float,
    save: Callable[[], None],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Trains for `seconds`, on `anchors` places of each of `batch` rows a step, and saves from
    time to time and at the end. Returns the number of steps.

    AdamW, its rate warmed up and let down to zero by a cosine over the time that there is.
    """
    decayed = [each for each in drafter.parameters() if each.ndim > 1]
    others = [each for each in drafter.parameters() if each.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    fused = drafter.target.device.type == "cuda"
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=fused)
    started = saved = clock()
    steps = 0
    while (now := clock()) < started + seconds:
        progress = (now - started) / seconds
        rate = min(1.0, progress / _WARM_UP) * (1 + math.cos(math.pi * progress)) / 2
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        rows = torch.randint(len(text), (batch,), device=text.ids.device)
        loss = block_loss(drafter, text[rows], anchors)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        if steps % _SAY_EVERY_STEPS == 0:
            say(f"step {steps} after {now - started:.1f} s: loss {loss.item():.3f}")
        if now - saved > _SAVE_EVERY_SECONDS:
            save()
            saved = now
        steps += 1
    save()
    return steps


def block_loss(drafter: Drafter, text: Text, anchors: int) -> Tensor:
    """The cross-entropy of the drafts after `anchors` places of answers of each row, drawn at
    random. A token that drafts cannot be is left out."""
    block, length = drafter.plan.block, text.ids.shape[1]
    may_be = text.answer[:, : length - block + 1] & text.answer[:, 1 : length - block + 2]
    chances = torch.rand(may_be.shape, device=may_be.device).masked_fill(~may_be, -1)
    chosen, places = chances.topk(min(anchors, may_be.shape[1]))
    wanted, in_answer = following(text, places, block - 1)
    row_of = torch.full((drafter.target.vocabulary,), -1, device=places.device)
    row_of[drafter.draft_ids] = torch.arange(len(drafter.draft_ids), device=places.device)
    wanted = row_of[wanted]
    weights = torch.exp(torch.arange(block - 1, device=places.device) / -_GAMMA)
    weights = weights * (in_answer & (wanted >= 0) & (chosen >= 0)[:, :, None])
    with precision_of(drafter):
        logits = drafter(places, text.ids.gather(1, places), text.features)
    losses = F.cross_entropy(logits.flatten(0, 2), wanted.clamp(min=0).flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum().clamp(min=1e-6)


def following(text: Text, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` tokens after `places` (`[rows, anchors]`), and which of them belong to the same
    answer; `[rows, anchors, count]` each."""
    after = places[:, :, None] + torch.arange(1, count + 1, device=places.device)
    within = after.clamp(max=text.ids.shape[1] - 1).flatten(1)
    wanted = text.ids.gather(1, within).view(after.shape)
    in_answer = text.answer.gather(1, within).view(after.shape) & (after < text.ids.shape[1])
    return wanted, in_answer.cumprod(2).bool()


def precision_of(drafter: Drafter) -> AbstractContextManager[None]:
    """Products in bfloat16 where the target has it; parameters stay float32."""
    dtype = drafter.target.embedding.dtype
    return torch.autocast(
        drafter.target.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16
    )

"""Conversations that the target has with itself, with the states that a companion reads.

No data set is needed: after the frame of a chat template an instruction-tuned model writes the
question, too ("Magpie", Xu et al., 2024, arXiv 2406.08464).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from tools.companion.target import Target
from tools.companion.template import Template

_TOP_P = 0.95
_LIKELIEST = 256  # tokens that may be drawn at all: sorting the whole vocabulary takes longest
_LONGEST_QUESTION = 128  # tokens; longer ones are often lists that never end
_BUCKET = 64  # tokens by which the part of the cache that a step reads grows


@dataclass(frozen=True, slots=True)
class Text:
    """Rows of conversations, of one length in tokens.

    `ids` are `[rows, length]`, int64. `answer` tells which of them the target wrote as answers,
    with the token that ends each. `features` are the tapped layers' states after each token,
    `[rows, length, taps * hidden]`. `greedy` tells of each row whether its answers are.
    """

    ids: Tensor
    answer: Tensor
    features: Tensor
    greedy: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def joined(cls, texts: list["Text"]) -> "Text":
        """All rows of all; empties the list, since two copies may not fit."""
        parts = {}
        for each in fields(cls):
            parts[each.name] = torch.cat([getattr(text, each.name) for text in texts])
        texts.clear()
        return cls(**parts)


@torch.no_grad()
def generate(
    target: Target,
    template: Template,
    taps: tuple[int, ...],
    rows: int,
    length: int,
    seconds: float,
    say: Callable[[str], None],
) -> Text:
    """As many batches of `rows` conversations as are done after `seconds`, and one at least.

    Half of the rows have greedy answers, the others answers at temperatures from 0.7 to 1;
    questions are drawn at 1. Ends early when the memory of the device would not do for more.
    """
    started = time.monotonic()
    conversations = _Conversations(target, template, taps, rows, length, say)
    texts: list[Text] = []
    longest = 0.0
    while not texts or time.monotonic() - started + longest < seconds:
        before = time.monotonic()
        texts.append(conversations.batch())
        longest = time.monotonic() - before
        tokens = len(texts) * rows * length
        say(f"{tokens} tokens after {time.monotonic() - started:.1f} s")
        if _memory_is_full(target.device):
            say("no more text: there is no memory for it")
            break
    return Text.joined(texts)


class _Conversations:
    """One step at a time, the same for all rows: what the template says and what is drawn differ
    only in which token comes next, so a step is one graph for the device."""

    def __init__(
        self,
        target: Target,
        template: Template,
        taps: tuple[int, ...],
        rows: int,
        length: int,
        say: Callable[[str], None],
    ) -> None:
        self._target, self._template, self._taps, self._say = target, template, taps, say
        self._length = length
        device = target.device
        # -1: the model goes on by itself.
        first = [*template.before_question, -1]
        then = [*first, *template.before_answer, -1]
        self._script = torch.tensor([*then, *template.before_next, -1], device=device)
        # Where it goes on after a question, and after an answer.
        self._after_turn = torch.tensor([len(first), len(then)], device=device)
        self._never = torch.tensor(template.special, device=device)
        self._cache = target.cache(rows, length)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._now = torch.zeros(rows, dtype=torch.int64, device=device)  # each row's token
        self._cue = torch.zeros_like(self._now)  # each row's place in the script
        self._said = torch.zeros_like(self._now)  # tokens of this turn
        self._answering = torch.zeros(rows, dtype=torch.bool, device=device)
        self._is_answer = torch.zeros_like(self._answering)  # of the token `now`
        greedy = torch.arange(rows, device=device) < rows // 2
        self._temperature = torch.linspace(0.4, 1.0, rows, device=device).masked_fill(greedy, 0)
        width = len(taps) * target.hidden
        self._text = Text(
            torch.zeros(rows, length, dtype=torch.int64, device=device),
            torch.zeros(rows, length, dtype=torch.bool, device=device),
            target.embedding.new_zeros(rows, length, width),
            greedy,
        )
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._with_graphs = device.type == "cuda"

    def batch(self) -> Text:
        self._now.fill_(self._template.before_question[0])
        self._cue.fill_(1)
        self._answering.zero_()
        self._is_answer.zero_()
        self._position.zero_()
        for start in range(0, self._length, _BUCKET):
            stop = min(start + _BUCKET, self._length)
            self._steps(stop, stop - start)
        if self._target.device.type == "cuda":
            torch.cuda.synchronize()
        return Text(*(getattr(self._text, each.name).clone() for each in fields(Text)))

    def _steps(self, visible: int, count: int) -> None:
        if self._with_graphs and visible not in self._graphs:
            self._step(visible)  # so that libraries have set themselves up when it is captured
            count -= 1
            self._capture(visible)
        for _ in range(count):
            if self._with_graphs:
                self._graphs[visible].replay()
            else:
                self._step(visible)

    def _capture(self, visible: int) -> None:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        try:
            with torch.cuda.graph(graph, pool=pool):
                self._step(visible)
        except RuntimeError as why:
            self._say(f"without CUDA graphs, since capture failed: {why}")
            self._with_graphs = False
            self._graphs.clear()
        else:
            self._graphs[visible] = graph

    def _step(self, visible: int) -> None:
        """The token of each row is run and written down, and the next one found."""
        logits, features = self._target(
            self._now[:, None], self._position, self._cache, visible, self._taps
        )
        self._text.ids.index_copy_(1, self._position, self._now[:, None])
        self._text.answer.index_copy_(1, self._position, self._is_answer[:, None])
        self._text.features.index_copy_(1, self._position, features)
        logits = logits[:, 0].index_fill(1, self._never, float("-inf"))
        drawn = _drawn(logits, self._temperature.masked_fill(~self._answering, 1))
        end = self._template.end
        tires = ~self._answering & (self._said >= _LONGEST_QUESTION)
        drawn = drawn.masked_fill(tires, end)
        scripted = self._script[self._cue]
        free = scripted < 0
        ends = free & (drawn == end)
        cue = self._after_turn[self._answering.long()]
        self._is_answer.copy_(free & self._answering)
        self._now.copy_(torch.where(free, drawn, scripted))
        self._cue.copy_(torch.where(ends, cue, self._cue + ~free))
        self._said.copy_((self._said + 1).masked_fill(~free, 0))
        self._answering.logical_xor_(ends)
        self._position.add_(1)


def _drawn(logits: Tensor, temperature: Tensor) -> Tensor:
    """One token for each row of `logits`, among those of top-p; the likeliest at temperature 0."""
    values, ids = logits.topk(min(_LIKELIEST, logits.shape[-1]))
    chances = (values / temperature.clamp(min=0.01)[:, None]).softmax(-1)
    chances = chances.masked_fill(chances.cumsum(-1) - chances > _TOP_P, 0)
    # The first of exponential clocks that run at these rates: a draw without waiting for the host.
    clocks = torch.empty_like(chances).exponential_().clamp_(min=1e-9)
    choice = (chances / clocks).argmax(-1).masked_fill(temperature == 0, 0)
    return ids.gather(1, choice[:, None])[:, 0]


def _memory_is_full(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return free < 0.55 * total  # as much again is needed to join the batches, and some to train

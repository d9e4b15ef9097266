"""What is read from the prompt cache, as usage tells it."""

import uuid
from typing import Any

from tools.qualification.check import Check, Trial, require, require_count, skip

_RULES = 120  # some 1,800 tokens: well over the least that servers cache
_LEAST_TOKENS = 1024


def warm(trial: Trial) -> None:
    """What was written is read, all of it, and the prompt's parts add up to its count."""
    rules = _rules()
    written, read = (_asked(trial, [_marked(rules)]) for _ in range(2))
    require(_written(written) > 0, "nothing was written to the cache")
    require(_read(written) == 0, "a prompt that was never sent before was read")
    _require_read(read, written)


def filled_ahead(trial: Trial) -> None:
    """`max_tokens: 0` fills the cache and generates nothing."""
    rules = _rules()
    filled = trial.ask("Hello", system=[_marked(rules)], max_tokens=0)
    require(filled.usage.output_tokens == 0, "tokens were generated for max_tokens 0")
    require(filled.content == [], "the answer to max_tokens 0 has content")
    require(_read(_asked(trial, [_marked(rules)])) > 0, "what was filled ahead is not read")


def reused(trial: Trial) -> None:
    """Another question about the same beginning reads it, in a stream too."""
    rules = _rules()
    written = _asked(trial, [_marked(rules)])
    for streams in (False, True):
        read = _asked(trial, [_marked(rules)], "And of Italy?", streams=streams)
        _require_read(read, written)


def moved(trial: Trial) -> None:
    """A marker that moves on with a conversation reads up to where the last one was."""
    rules = _rules()
    block = {"type": "text", "text": rules}
    first = _asked(trial, [_marked(rules)])
    further = {"type": "text", "text": "Be brief. " * 20, "cache_control": {"type": "ephemeral"}}
    second = _asked(trial, [block, further])
    _require_read(second, first)
    require(_written(second) > 0, "what is new before the marker was not written")


def changed(trial: Trial) -> None:
    """Nothing is read of a prompt whose beginning is another."""
    rules = _rules()
    _asked(trial, [_marked(rules)])
    other = _asked(trial, [_marked(f"Changed. {rules}")])
    require(_read(other) == 0, f"{_read(other)} tokens were read of a prompt that is another")


def _rules() -> str:
    """A long text that no earlier run has sent."""
    lines = (f"Rule {number}: be brief, be kind, and be right." for number in range(_RULES))
    return f"These are the rules of house {uuid.uuid4()}.\n" + "\n".join(lines)


def _marked(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _asked(
    trial: Trial, system: list[dict[str, Any]], text: str = "Hello", *, streams: bool = False
) -> Any:
    if trial.server.context_tokens < 4 * _LEAST_TOKENS:
        skip(f"a context of {trial.server.context_tokens} tokens is too short for this")
    answer = trial.ask(text, system=system, streams=streams, max_tokens=1)
    require_count(trial.count(text, system=system), answer)
    return answer


def _require_read(later: Any, earlier: Any) -> None:
    """What the earlier prompt wrote, the later one has read."""
    written, read = _written(earlier), _read(later)
    require(read >= written, f"{written} tokens were written, and {read} of them read")


def _read(answer: Any) -> int:
    return answer.usage.cache_read_input_tokens or 0


def _written(answer: Any) -> int:
    return answer.usage.cache_creation_input_tokens or 0


CHECKS = [
    Check("cache", "what was written is read", warm),
    Check("cache", "filled ahead", filled_ahead),
    Check("cache", "another question", reused),
    Check("cache", "a marker that moves on", moved),
    Check("cache", "a changed beginning", changed),
]

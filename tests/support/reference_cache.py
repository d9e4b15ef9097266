"""What a prompt cache promises, in the simplest form there is: one that never forgets."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from models.boundary import Boundary


@dataclass(slots=True)
class _Promise:
    ttl_seconds: float
    expires: float


class ReferenceCache:
    """The promises of each scope, by the prefix that they are for."""

    def __init__(self) -> None:
        self._promises: dict[str, dict[tuple[int, ...], _Promise]] = defaultdict(dict)

    def use(
        self,
        scope: str,
        ids: Sequence[int],
        boundaries: Sequence[Boundary],
        now: float,
        computed: int | None = None,
    ) -> tuple[int, int]:
        """A run with this prompt at `now`, in seconds: how many of its first tokens are read, and
        how many are kept. It computes its prompt, or no more than its first `computed` tokens."""
        last = len(ids) - 1  # at least one token is always computed
        own: dict[int, float] = {}
        for each in boundaries:
            tokens = min(each.tokens, last)
            own[tokens] = max(each.ttl_seconds, own.get(tokens, 0))
        limit = max(own, default=0)
        promises = self._promises[scope]
        live = {
            len(prefix): promise
            for prefix, promise in promises.items()
            if len(prefix) <= limit
            and now < promise.expires
            and prefix == tuple(ids[: len(prefix)])
        }
        for promise in live.values():
            promise.expires = now + promise.ttl_seconds
        there = last if computed is None else max(computed, 0, *live)
        for tokens, ttl in own.items():
            if 0 < tokens <= there:
                longest = max(ttl, live[tokens].ttl_seconds if tokens in live else 0)
                promises[tuple(ids[:tokens])] = _Promise(longest, now + longest)
        return max(live, default=0), limit

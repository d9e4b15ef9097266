"""Where a prompt is worth keeping."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in a prompt, in tokens from its beginning, up to which its computed state is to be
    kept for `ttl_seconds` after each use."""

    tokens: int
    ttl_seconds: int

"""How many files this process may have open."""

import resource
from contextlib import suppress

# The database, records, and connections that are closing or refused while the queue is full.
_OTHERS = 256


def allow_descriptors(connections: int) -> None:
    """Raise the limit to what so many connections need, as far as the system lets it.

    macOS starts programs with 256, less than may wait in the queue; without descriptors neither
    requests nor records can be opened.
    """
    needed = 2 * connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with suppress(ValueError, OSError):  # the kernel may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

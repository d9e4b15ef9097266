"""One page, encrypted by pypdf 7.1.1 in all the ways it knows, with nothing allowed to readers.

`owner-*` have an empty user password, `user-*` the user password "secret".
"""

from pathlib import Path

OPEN = sorted(Path(__file__).parent.glob("owner-*.pdf"))
LOCKED = sorted(Path(__file__).parent.glob("user-*.pdf"))

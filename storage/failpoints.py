"""Named points in the life of a job, at which the tests have the process killed."""

import os
import signal

_NAME, _, _PASSING = os.environ.get("MERERUN_FAILPOINT", "").partition(":")
_passings_left = int(_PASSING or 1)


def failpoint(name: str) -> None:
    """Nothing, unless the variable MERERUN_FAILPOINT was `name`, or `name:n` for the n-th passing,
    when the process began: then it ends here, as by `kill -9`. `tests/faults/points.py` has the
    list of all points.
    """
    global _passings_left
    if name != _NAME:
        return
    _passings_left -= 1
    if _passings_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

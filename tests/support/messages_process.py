"""The plainest Messages server in a process of its own. The one argument: what it does, as JSON.

`seconds` is how long it takes for an answer, `speed` what it tells for each token, and
`speed_with_tools` what where it has tools; it has `faults`, and `dies_after` so many messages.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.messages_server import Blocks, called, messages_server, said

# Not from support.running, whose imports take longer than all else here.
_REPOSITORY = Path(__file__).parents[2]


@contextmanager
def messages_process(**script: Any) -> Iterator[str]:
    """Its URL."""
    command = [sys.executable, "-m", "tests.support.messages_process", json.dumps(script)]
    with subprocess.Popen(
        command, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def main() -> None:
    script = json.loads(sys.argv[1])
    speed = script.get("speed", 1)

    def answers(request: dict[str, Any]) -> Blocks:
        if len(server.requests) == script.get("dies_after"):
            os._exit(1)
        time.sleep(script.get("seconds", 0))
        tools = request.get("tools")
        server.speed = script.get("speed_with_tools", speed) if tools else speed
        return called(tools[0]["name"], needs_attention=True) if tools else said("Once more.")

    with messages_server(answers) as server:
        server.faults |= set(script.get("faults", ()))
        print(server.url, flush=True)
        sys.stdin.read()  # until the test has closed it


if __name__ == "__main__":
    main()

"""What does for Claude Code in tests: it prints a session's events, and really does its steps.

Arguments: a JSON file, then the client's own. The file has a list of sessions, of which the next
is begun and taken out. A session is a list of steps: a tool and its input, or one of
`["hang"]` for ever, `["leave"]` without a result, `["try again"]` a request that has failed,
`["give up"]` because of the service, and `["tell", VARIABLE]`.
"""

import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

_USAGE = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
_ids = count(1)


def main() -> None:
    if "--version" in sys.argv:
        print("0.0.1 (stand-in)")
        return
    file, *arguments = sys.argv[1:]
    session, *later = json.loads(Path(file).read_text())
    Path(file).write_text(json.dumps(later))
    result = {"subtype": "success", "is_error": False, "result": "All is done, and it passes."}
    _print("system", subtype="init", arguments=arguments, stdin=sys.stdin.read())
    for name, *given in session:
        match name:
            case "hang":
                child = subprocess.Popen(["sleep", "600"])
                _say({"type": "text", "text": f"It is process {child.pid}"})
                time.sleep(600)
            case "leave":
                sys.exit(3)
            case "try again":
                _print("system", subtype="api_retry", attempt=1, error_status=529)
            case "give up":
                result |= {"is_error": True, "api_error_status": 529, "result": "API Error: 529"}
            case "tell":
                _say({"type": "text", "text": os.environ[given[0]]})
                Path("told.txt").write_text(os.environ[given[0]])
            case _:
                _use(name, given[0])
    _print("result", **result, num_turns=3, usage=_USAGE)


def _use(tool: str, given: dict[str, Any]) -> None:
    key = f"toolu_{next(_ids)}"
    _say({"type": "tool_use", "id": key, "name": tool, "input": given})
    failed, said = _TOOLS[tool](given)
    result = {"type": "tool_result", "tool_use_id": key, "is_error": failed, "content": said}
    _print("user", message={"role": "user", "content": [result]})


def _read(given: dict[str, Any]) -> tuple[bool, str]:
    path = Path(given["file_path"])
    return (False, path.read_text()) if path.exists() else (True, "File does not exist.")


def _edit(given: dict[str, Any]) -> tuple[bool, str]:
    path = Path(given["file_path"])
    before = path.read_text()
    path.write_text(before.replace(given["old_string"], given["new_string"]))
    return given["old_string"] not in before, "edited"


def _bash(given: dict[str, Any]) -> tuple[bool, str]:
    command = ["sh", "-c", given["command"]]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.returncode != 0, f"Exit code {ended.returncode}\n{ended.stdout}"


_TOOLS = {"Read": _read, "Edit": _edit, "Bash": _bash}


def _say(block: dict[str, Any]) -> None:
    message = {"id": f"msg_{next(_ids)}", "model": "plain", "content": [block], "usage": _USAGE}
    _print("assistant", message=message)


def _print(kind: str, **more: Any) -> None:
    # As Claude Code itself: only what must be is escaped.
    print(json.dumps({"type": kind, **more}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()

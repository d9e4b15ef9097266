"""The real service over an engine of the tests.

Arguments: settings as a JSON object, the engine's module, and what that takes."""

import json
import logging
import sys
from pathlib import Path

import anyio

from service.serving import serve
from service.settings import Settings

_PATHS = ("data_dir", "ready_file")


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    given = json.loads(sys.argv[1])
    settings = Settings(**{**given, **{name: Path(given[name]) for name in _PATHS}})
    anyio.run(_serve, settings, [sys.executable, "-m", *sys.argv[2:]])


async def _serve(settings: Settings, engine: list[str]) -> None:
    await serve(settings, lambda url, checkpoint: None, engine_command=engine)


if __name__ == "__main__":
    main()

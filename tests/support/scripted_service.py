"""The real service over the scripted engine. The one argument: settings as a JSON object."""

import json
import logging
import sys
from pathlib import Path

import anyio

from service.serving import serve
from service.settings import Settings

_ENGINE = (sys.executable, "-m", "tests.support.scripted_engine")


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    given = json.loads(sys.argv[1])
    paths = {key: Path(value) for key, value in given.items() if key in _PATHS}
    anyio.run(_serve, Settings(**{**given, **paths}))


async def _serve(settings: Settings) -> None:
    await serve(settings, lambda url, checkpoint: None, engine_command=_ENGINE)


_PATHS = {"data_dir", "ready_file", "api_key_file"}

if __name__ == "__main__":
    main()

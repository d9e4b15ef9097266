"""The real service over the scripted engine. The one argument: settings as a JSON object.

Its log tells what it was asked, and the status it answered with.
"""

import json
import logging
import sys
from pathlib import Path

import anyio
from quart import Quart, Response, request

from models.catalog import Checkpoint
from models.families import family_of
from models.families.family import Family
from service import serving
from service.app import create_app
from service.auth import Keys
from service.core import Core
from service.settings import Settings
from tests.support.fake_language import FakeFamily, speaks_it

_ENGINE = (sys.executable, "-m", "tests.support.scripted_engine")


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    given = json.loads(sys.argv[1])
    paths = {key: Path(value) for key, value in given.items() if key in _PATHS}
    anyio.run(_serve, Settings(**{**given, **paths}))


def _family_of(checkpoint: Checkpoint) -> Family:
    return FakeFamily(checkpoint) if speaks_it(checkpoint) else family_of(checkpoint)


def _create_app(core: Core, keys: Keys | None) -> Quart:
    app = create_app(core, keys)

    async def tell(response: Response) -> Response:
        logging.info("asked %s %s: %d", request.method, request.path, response.status_code)
        return response

    app.after_request(tell)
    return app


async def _serve(settings: Settings) -> None:
    serving.family_of = _family_of
    serving.create_app = _create_app
    await serving.serve(settings, lambda url, checkpoint: None, engine_command=_ENGINE)


_PATHS = {"data_dir", "ready_file", "api_key_file"}

if __name__ == "__main__":
    main()

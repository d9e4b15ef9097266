"""How long the documents of one request may take."""

from collections.abc import Mapping
from functools import partial
from typing import cast

import anyio
import pytest

from service.documents import documents
from service.documents.documents import Documents
from service.documents.sources import Media, Source, Sources
from service.errors import ApiError
from service.wire.blocks import Base64Source

pytestmark = pytest.mark.anyio


class SlowSources:
    """Each takes a while, and cannot be hurried."""

    async def media(self, source: Source, path: str, scope: str) -> Media:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
        return Media("text/plain", path.encode())


async def test_plain_texts_count_to_the_time_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_Left", partial(documents._Left, seconds=0.5))
    source = Base64Source(type="base64", media_type="text/plain", data="YQ==")
    found: Mapping[str, Source] = {str(number): source for number in range(100)}
    with pytest.raises(ApiError, match="take more than 60 s to read; send fewer"):
        await Documents(cast(Sources, SlowSources())).texts(found, "")

"""Where the bytes of a document come from."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anyio import to_thread

from service.documents.base64_data import decoded
from service.documents.limits import MOST_BYTES, MOST_MIB
from service.documents.urls import DocumentUrls
from service.errors import ApiError
from service.media_type import bare
from service.wire.blocks import Base64Source, FileSource, UrlSource
from storage.files import Files

Source = Base64Source | UrlSource | FileSource


@dataclass(frozen=True, slots=True)
class Media:
    """Bytes, and what the source says that they are."""

    media_type: str
    data: bytes


class Sources:
    def __init__(self, files: Files, urls: DocumentUrls | None) -> None:
        """Without `urls` none are read."""
        self._files = files
        self._urls = urls

    async def digests(self, sources: Iterable[Source], scope: str) -> Mapping[str, str]:
        """The SHA-256 of the uploaded files among them, by id."""
        ids = {source.file_id for source in sources if isinstance(source, FileSource)}
        found = (await self._files.among(ids, scope)).files if ids else ()
        return {file.id: file.sha256 for file in found}

    async def media(self, source: Source, path: str, scope: str) -> Media:
        """What `source`, at `path` in the request, holds for the API key `scope`. Raises ApiError
        that says why it cannot be had: 404 for a file that is not there, 400 for the rest."""
        match source:
            case Base64Source(media_type=media_type, data=data):
                content = await to_thread.run_sync(decoded, data, f"{path}.data")
                return Media(bare(media_type), content)
            case UrlSource(url=url):
                if self._urls is None:
                    raise ApiError.invalid(
                        f"{path}.url: this server reads no documents from URLs; send the content,"
                        " or have it started with --allow-document-urls"
                    )
                return Media(*await self._urls.read(url, f"{path}.url"))
            case FileSource(file_id=id):
                return await self._uploaded(id, f"{path}.file_id", scope)

    async def _uploaded(self, id: str, path: str, scope: str) -> Media:
        file = await self._files.get(id, scope)
        if file is not None and file.expired(time.time()):
            reason = f"{path}: the time of the file {id} is over; upload it again"
            raise ApiError(404, "not_found_error", reason, "file_expired")
        if file is not None and file.size > MOST_BYTES:
            raise ApiError.invalid(f"{path}: the file has more than {MOST_MIB} MiB; send a part")
        data = await self._files.read(file) if file is not None else None
        if file is None or data is None:
            raise ApiError.not_found(
                f"{path}: the file {id[:100]} is not known here (any more); upload it first"
            )
        return Media(file.mime_type, data)

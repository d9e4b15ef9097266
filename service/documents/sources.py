"""Where the bytes of a document come from."""

from dataclasses import dataclass

from anyio import to_thread

from service.documents.base64_data import decoded
from service.documents.urls import DocumentUrls
from service.errors import ApiError
from service.wire.blocks import Base64Source, FileSource, UrlSource

Source = Base64Source | UrlSource | FileSource


@dataclass(frozen=True, slots=True)
class Media:
    """Bytes, and what the source says that they are."""

    media_type: str
    data: bytes


class Sources:
    def __init__(self, urls: DocumentUrls | None) -> None:
        """Without `urls` none are read."""
        self._urls = urls

    async def media(self, source: Source, path: str, scope: str) -> Media:
        """What `source`, at `path` in the request, holds for the API key `scope`. Raises ApiError
        400 that says why it cannot be had."""
        match source:
            case Base64Source(media_type=media_type, data=data):
                return Media(media_type, await to_thread.run_sync(decoded, data, f"{path}.data"))
            case UrlSource(url=url):
                if self._urls is None:
                    raise ApiError.invalid(
                        f"{path}.url: this server reads no documents from URLs; send the content,"
                        " or have it started with --allow-document-urls"
                    )
                return Media(*await self._urls.read(url, f"{path}.url"))
            case FileSource():
                raise ApiError.invalid(f"{path}.type: uploaded files cannot be read yet")

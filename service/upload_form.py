"""The `multipart/form-data` of an upload, read while it arrives."""

import re
from dataclasses import dataclass
from mimetypes import MimeTypes
from typing import Any

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from service.errors import ApiError
from service.media_type import bare
from service.streamed_body import PIECE_BYTES
from storage.files import Upload

FORM_BYTES = 1 << 16  # what the form may take beside the file itself

_ANY_BYTES = "application/octet-stream"
_MIME_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_TYPES = MimeTypes()  # Python's own, so that they are the same on every machine
_SEPARATORS = re.compile(r"[/\\]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_MOST_NAME_CHARACTERS = 255
_EXPIRY_SECONDS = range(3600, 90 * 24 * 3600 + 1)  # the API's own bounds
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """What the form says of its file; its bytes are the upload's."""

    filename: str
    mime_type: str
    expires_in_seconds: int | None


class UploadForm:
    """Takes the pieces of a form, and gives the bytes of its part `file` to an upload.

    Its methods block, and raise ApiError for a form that is not as it must be; what the upload
    raises passes.
    """

    def __init__(self, content_type: str | None, upload: Upload, most_bytes: int) -> None:
        self._decoder = MultipartDecoder(_boundary(content_type), 2 * PIECE_BYTES + FORM_BYTES)
        self._upload = upload
        self._most_bytes = most_bytes
        self._part: File | Field | None = None
        self._file: File | Field | None = None
        self._expiry: bytes | None = None

    def feed(self, piece: bytes | None) -> None:
        """Take the next piece of the body; None is its end."""
        try:
            self._decoder.receive_data(piece)
            while not isinstance(event := self._decoder.next_event(), NeedData | Epilogue):
                self._take(event)
        except ValueError:
            raise ApiError.invalid("the request body is not valid multipart/form-data") from None
        except RequestEntityTooLarge:
            raise ApiError.invalid(
                "the request body is not valid multipart/form-data: there is too much beside its"
                " parts"
            ) from None

    def end(self) -> UploadedFile:
        """What the form said. Only now is it sure to be whole."""
        self.feed(None)
        if self._file is None:
            raise ApiError.invalid("file: Field required; send the file as the form's part 'file'")
        name, type = getattr(self._file, "filename", ""), self._file.headers.get("Content-Type")
        mime_type = _mime_type(type, name)
        return UploadedFile(_filename(name, mime_type), mime_type, self._expires_in_seconds())

    def _take(self, event: Any) -> None:
        match event:
            case File() | Field():
                self._begin(event)
            case Data(data=data) if self._part is self._file:
                if self._upload.size + len(data) > self._most_bytes:
                    raise ApiError.too_large(
                        f"file: it is too large: the limit is {self._most_bytes >> 20} MiB"
                    )
                self._upload.write(data)
            case Data(data=data):
                self._expiry = (self._expiry or b"") + data[:_MOST_DIGITS]
            case _:  # what stands before the first part means nothing
                pass

    def _begin(self, part: File | Field) -> None:
        name, self._part = part.name, part
        if name == "file" and self._file is None:
            self._file = part
        elif name != "expires_in_seconds" and name != "file":
            raise ApiError.invalid(f"{str(name)[:100]}: the form has no such part; leave it out")
        elif name == "file" or self._expiry is not None:
            raise ApiError.invalid(f"{name}: send it once; another file is another request")
        else:
            self._expiry = b""

    def _expires_in_seconds(self) -> int | None:
        if self._expiry is None:
            return None
        if self._expiry.isdigit() and (seconds := int(self._expiry)) in _EXPIRY_SECONDS:
            return seconds
        raise ApiError.invalid(
            "expires_in_seconds: Input should be an integer from"
            f" {_EXPIRY_SECONDS.start} to {_EXPIRY_SECONDS.stop - 1}"
        )


def _boundary(content_type: str | None) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data":
        raise ApiError.invalid(
            "Content-Type: a file is sent as multipart/form-data, in the form's part 'file'"
        )
    boundary = options.get("boundary", "")
    if not 0 < len(boundary) <= 70 or not boundary.isascii():  # RFC 2046, 5.1.1
        raise ApiError.invalid("Content-Type: multipart/form-data needs its boundary")
    return boundary.encode()


def _mime_type(given: str | None, filename: str) -> str:
    """As the part has it, or by the name where it does not say."""
    kind = bare(given or "")
    if kind in ("", _ANY_BYTES):
        return _TYPES.guess_type(filename)[0] or _ANY_BYTES
    if not _MIME_TYPE.fullmatch(kind):
        raise ApiError.invalid("file: its Content-Type should be a media type, like text/plain")
    return kind


def _filename(given: str, mime_type: str) -> str:
    """The last component of a path, as the API has it."""
    name = _SEPARATORS.split(given)[-1]
    if name in ("", ".", ".."):
        return "unnamed" + (_TYPES.guess_extension(mime_type) or "")
    if len(name) > _MOST_NAME_CHARACTERS:
        raise ApiError.invalid(
            f"file: its filename is too long: {len(name)} characters, at most"
            f" {_MOST_NAME_CHARACTERS}"
        )
    if _UNPRINTABLE.search(name):
        raise ApiError.invalid("file: its filename has control characters; leave them out")
    return name

"""Uploaded files as the service answers with them: one, a page, one that was deleted."""

import re
from datetime import UTC, datetime
from typing import Any

from storage.files import FilePage, Place, StoredFile

_PAGE = re.compile(r"page_(\d{1,12}\.\d{1,9})_(file_\w{1,40})", re.ASCII)


def file_json(file: StoredFile) -> dict[str, Any]:
    """A `FileMetadata`. Here a file may be downloaded by whoever uploaded it."""
    return {
        "id": file.id,
        "type": "file",
        "filename": file.filename,
        "mime_type": file.mime_type,
        "size_bytes": file.size,
        "created_at": _time(file.created_at),
        "expires_at": None if file.expires_at is None else _time(file.expires_at),
        "downloadable": True,
    }


def page_json(page: FilePage, *, onwards: bool = True) -> dict[str, Any]:
    """`next_page` is what current SDKs go on with, the ids are what older ones do. Without
    `onwards` the page is not one of a list that goes on."""
    shown = page.files
    return {
        "data": [file_json(file) for file in shown],
        "next_page": _token(shown[-1].place) if onwards and page.has_more else None,
        "has_more": page.has_more,
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
    }


def deleted_json(file: StoredFile) -> dict[str, Any]:
    return {"id": file.id, "type": "file_deleted"}


def place_of(token: str) -> Place | None:
    """The place that a `next_page` stands for; None if it is none."""
    found = _PAGE.fullmatch(token)
    return (float(found[1]), found[2]) if found else None


def _token(place: Place) -> str:
    # A place, so that a client which deletes what it lists finds its way on.
    return f"page_{place[0]!r}_{place[1]}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()

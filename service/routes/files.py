"""`/v1/files`: create, list, retrieve, content, delete."""

import time
from collections.abc import AsyncIterator
from typing import BinaryIO

from anyio import to_thread
from quart import Quart, Response, g, jsonify, request

from service.core import Core
from service.errors import ApiError
from service.ids import new_id
from service.routes.queries import limit
from service.streamed_body import PIECE_BYTES, pieces
from service.upload_form import UploadForm
from service.wire import files as wire
from storage.errors import StorageError
from storage.files import NoRoom, Place, StoredFile
from storage.to_the_end import to_the_end

PATH = "/v1/files"
_LIMIT, _MOST = 20, 1000
_MOST_IDS = 100


class FileRoutes:
    def __init__(self, core: Core) -> None:
        self._files = core.files
        self._most_bytes = core.settings.file_limit_bytes

    def mount(self, app: Quart) -> None:
        one = f"{PATH}/<file_id>"
        app.add_url_rule(PATH, view_func=self.create_file, methods=["POST"])
        app.add_url_rule(PATH, view_func=self.list_files)
        app.add_url_rule(one, view_func=self.show_file)
        app.add_url_rule(one, view_func=self.delete_file, methods=["DELETE"])
        app.add_url_rule(f"{one}/content", view_func=self.show_content)

    async def create_file(self) -> Response:
        """Nothing of it is kept unless all of it has arrived."""
        id = new_id("file")
        async with self._files.receiving(id) as upload:
            form = UploadForm(request.headers.get("Content-Type"), upload, self._most_bytes)
            try:
                async for piece in pieces(request):
                    # To the end: a thread that still writes must not lose its file.
                    await to_the_end(lambda piece=piece: to_thread.run_sync(form.feed, piece))
            except NoRoom as error:
                raise ApiError.invalid(
                    f"file: {error}; delete files that are not needed any more, or free space",
                    "storage_quota_exceeded",
                ) from error
            said = form.end()
            now = time.time()
            file = StoredFile(
                id=id,
                api_key=g.api_key or "",
                filename=said.filename,
                mime_type=said.mime_type,
                size=upload.size,
                sha256=upload.sha256,
                created_at=now,
                expires_at=said.expires_in_seconds and now + said.expires_in_seconds,
            )
            await self._files.keep(upload, file)
        return jsonify(wire.file_json(file))

    async def list_files(self) -> Response:
        """Newest first; `?limit=` up to 1000, and `?page=` as the last page had it in `next_page`,
        or `?after_id=` or `?before_id=` of another page; or `?ids[]=` up to 100 times."""
        if request.args.get("scope_id"):
            raise ApiError.invalid("scope_id: there are no sessions here; list without it")
        ids = set(request.args.getlist("ids[]") + request.args.getlist("ids"))
        if ids:
            return await self._list_some(ids)
        given = [name for name in ("page", "after_id", "before_id") if request.args.get(name)]
        if len(given) > 1:
            raise ApiError.invalid(f"{given[1]}: use either {given[0]} or {given[1]}")
        place = await self._place(given[0]) if given else None
        before = given == ["before_id"]
        page = await self._files.page(
            g.api_key or "",
            limit=limit(_LIMIT, _MOST),
            after=None if before else place,
            before=place if before else None,
        )
        return jsonify(wire.page_json(page, onwards=not before))

    async def _list_some(self, ids: set[str]) -> Response:
        if request.args.get("limit") or request.args.get("page"):
            raise ApiError.invalid("ids: use either ids, or limit and page")
        if len(ids) > _MOST_IDS:
            raise ApiError.invalid(f"ids: there are {len(ids)}, at most {_MOST_IDS} are listed")
        return jsonify(wire.page_json(await self._files.among(ids, g.api_key or "")))

    async def _place(self, name: str) -> Place:
        cursor = request.args[name]
        if name == "page":
            if (place := wire.place_of(cursor)) is None:
                raise ApiError.invalid("page: Input should be the next_page of another page")
            return place
        file = await self._files.get(cursor, g.api_key or "")
        if file is None:
            raise ApiError.not_found(
                f"{name}: the file {cursor[:100]} is not known here (any more); list from the"
                " start again"
            )
        return file.place

    async def show_file(self, file_id: str) -> Response:
        return jsonify(wire.file_json(await self._get(file_id)))

    async def show_content(self, file_id: str) -> Response:
        """The bytes as they were uploaded; once they have begun, all of them, whatever happens to
        the file."""
        file = await self._get(file_id)
        if file.expired(time.time()):
            raise ApiError(
                404, "not_found_error", f"file: the time of {file.id} is over", "file_expired"
            )
        content = await self._files.open(file)
        if content is None:
            raise _unknown(file.id)
        if request.method == "HEAD":
            content.close()
        response = Response(b"" if content.closed else _read(content))
        response.content_type = file.mime_type
        response.content_length = file.size
        response.headers.set("Content-Disposition", "attachment", filename=file.filename)
        response.headers["X-Content-Type-Options"] = "nosniff"  # it is not our page
        return response

    async def delete_file(self, file_id: str) -> Response:
        """Answers that read it have what they need, and so have their records."""
        file = await self._get(file_id)
        if not await self._files.delete(file):
            raise _unknown(file.id)
        return jsonify(wire.deleted_json(file))

    async def _get(self, file_id: str) -> StoredFile:
        file = await self._files.get(file_id, g.api_key or "")
        if file is None:
            raise _unknown(file_id)
        return file


def _unknown(file_id: str) -> ApiError:
    return ApiError.not_found(f"file: {file_id[:100]} is not known here (any more)")


async def _read(content: BinaryIO) -> AsyncIterator[bytes]:
    try:
        while piece := await to_the_end(lambda: to_thread.run_sync(content.read, PIECE_BYTES)):
            yield piece
    except OSError as error:
        raise StorageError(f"an uploaded file could not be read: {error.strerror}") from error
    finally:
        content.close()

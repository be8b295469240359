"""Files: uploaded as they are, listed, downloaded, kept and deleted."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from holdfast.protocol.file import FileList, FileView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.wire import CLOSE_CONNECTION, json_response, no_content
from holdfast.server.views.files import file_list, file_view
from holdfast.store.files import FileRow

PIECE_SECONDS: Final = 60.0
"""How long the server waits for the next piece of an upload."""

DISCARDED_BYTES: Final = 4_000_000
DISCARD_SECONDS: Final = 5.0
"""How much of a refused upload is read before the connection is closed, and for how long."""

UNSAFE_TO_SHOW: Final = "sandbox; default-src 'none'"
"""The policy for what a browser shows of a file: nothing runs in this server's origin."""


class UploadQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    id: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    """The same id with the same content again is the same file."""
    keep: bool = False
    """The file stays without a session that uses it."""


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: Annotated[str, Meta(max_length=200)] | None = None


class FileChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kept: bool


@endpoint(
    "POST",
    "/v1/files",
    summary="Upload a file: the body is its content",
    query=UploadQuery,
    takes_bytes=True,
    results={201: FileView},
)
async def upload(call: HttpCall) -> Response:
    query = call.query(UploadQuery)
    row = await call.service.files.add(
        call.identity.owner,
        query.name,
        _pieces(call),
        media_type=call.header("content-type"),
        file_id=query.id,
        is_kept=query.keep,
    )
    return json_response(file_view(row), 201)


@endpoint("GET", "/v1/files", summary="The caller's files, newest first", query=FilesQuery, result=FileList)
async def list_files(call: HttpCall) -> Response:
    query = call.query(FilesQuery)
    page = await call.service.files.page(call.identity.owner, limit=query.limit, after=query.cursor)
    return json_response(file_list(page))


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/files",
    summary="The files that a session's messages have and its tools made, newest first",
    query=FilesQuery,
    result=FileList,
)
async def list_session_files(call: HttpCall) -> Response:
    query = call.query(FilesQuery)
    page = await call.service.files.page(
        call.identity.owner, limit=query.limit, after=query.cursor, session=call.key.session
    )
    return json_response(file_list(page))


@endpoint("GET", "/v1/files/{file_id}", summary="A file, without its content", result=FileView)
async def show(call: HttpCall) -> Response:
    return json_response(file_view(await call.service.files.find(call.identity.owner, call.path("file_id"))))


@endpoint(
    "GET",
    "/v1/files/{file_id}/content",
    summary="The content of a file",
    results={200: None},
    media_type="application/octet-stream",
)
async def download(call: HttpCall) -> Response:
    row = await call.service.files.find(call.identity.owner, call.path("file_id"))
    await call.service.files.check()
    return StreamingResponse(call.service.files.read(row), 200, _headers(row), media_type=row.media_type)


@endpoint("PATCH", "/v1/files/{file_id}", summary="Keep a file, or not", body=FileChanges, result=FileView)
async def change(call: HttpCall) -> Response:
    changes = await call.body(FileChanges)
    row = await call.service.files.keep(call.identity.owner, call.path("file_id"), is_kept=changes.kept)
    return json_response(file_view(row))


@endpoint("DELETE", "/v1/files/{file_id}", summary="Delete a file, also from sessions", results={204: None})
async def delete(call: HttpCall) -> Response:
    await call.service.files.delete(call.identity.owner, call.path("file_id"))
    return no_content()


async def _pieces(call: HttpCall) -> AsyncGenerator[bytes, None]:
    """The body as it comes. A body that is not finished is an error, and not the end of the file."""
    limit = call.service.settings.max_file_bytes
    if int(call.header("content-length") or "0") > limit:
        await _discard_start(call)
        message = f"A file has at most {limit:,} bytes here."
        raise ApiError(413, "file_too_large", message, headers=CLOSE_CONNECTION)
    body = call.request.stream()
    try:
        while True:
            async with asyncio.timeout(PIECE_SECONDS):
                piece = await anext(body, None)
            if piece is None:
                return
            yield piece
    except TimeoutError:
        raise ApiError(408, "body_late", "The file did not come in time.", headers=CLOSE_CONNECTION) from None
    except ClientDisconnect:
        raise ApiError(400, "body_cut", "The request ended before its body did.") from None


async def _discard_start(call: HttpCall) -> None:
    """Read a part of a body that is refused: many clients read the answer only after they have sent what they have, and
    a connection that is closed before that loses the answer."""
    left = DISCARDED_BYTES
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DISCARD_SECONDS):
            async for piece in call.request.stream():
                left -= len(piece)
                if left < 0:
                    return


def _headers(row: FileRow) -> dict[str, str]:
    return {
        "content-length": str(row.size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(row.name, safe='')}",
        "content-security-policy": UNSAFE_TO_SHOW,
        "etag": f'"{row.digest}"',
        "cache-control": "private, no-cache",
    }

"""The web page: one document that browsers revalidate each time, and built files that never change.

Neither exposes user data, so both are served without authentication. The page authenticates its own requests with the
token from its URL fragment, which browsers never send.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError

ASSETS: Final = "/assets/"

DOCUMENT: Final = "page.html"

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


MEDIA_TYPES: Final[Mapping[str, str]] = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
"""A fixed table instead of this machine's: a browser runs no script of another media type."""


class BuiltFile(msgspec.Struct, frozen=True):
    media_type: str
    tag: str
    plain: bytes
    zipped: bytes


BUILT: Final = Path(__file__).parents[3] / "web" / "built"
"""The files of the page."""


@endpoint(
    "GET",
    "/",
    summary="The web page",
    results={200: None, 304: None},
    media_type="text/html",
    is_public=True,
)
async def show_page(call: HttpCall) -> Response:
    headers = {
        "content-security-policy": CONTENT_POLICY,
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
    }
    return _file_response(call, built_file(DOCUMENT), headers)


@endpoint("GET", "/assets/{name}", summary="A file of the web page", results={200: None, 304: None}, is_public=True)
async def show_file(call: HttpCall) -> Response:
    name = call.path("name")
    file = built_file(name) if name in file_names() and name != DOCUMENT else None
    if file is None:
        raise ApiError(404, "not_found", "There is no such file. A page from before an upgrade has to be loaded anew.")
    return _file_response(call, file, {"cache-control": "public, max-age=31536000, immutable"})


@cache
def file_names() -> frozenset[str]:
    return frozenset(entry.name for entry in BUILT.iterdir())


@cache
def built_file(name: str) -> BuiltFile:
    plain = (BUILT / name).read_bytes()
    media_type = MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    tag = f'W/"{hashlib.sha256(plain).hexdigest()[:32]}"'  # Weak: the same for the plain and the zipped file.
    return BuiltFile(media_type=media_type, tag=tag, plain=plain, zipped=gzip.compress(plain, 9, mtime=0))


def _file_response(call: HttpCall, file: BuiltFile, headers: dict[str, str]) -> Response:
    headers = {**headers, "vary": "accept-encoding", "etag": file.tag}
    if file.tag in call.header("if-none-match"):
        return Response(status_code=304, headers=headers)
    if _takes_gzip(call.header("accept-encoding")):
        return Response(file.zipped, 200, {**headers, "content-encoding": "gzip"}, media_type=file.media_type)
    return Response(file.plain, 200, headers, media_type=file.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether the header names gzip with a weight above zero."""
    return re.search(r"(?:^|,)\s*gzip\s*(?:$|,|;\s*q=(?:1|0\.0*[1-9]))", accepted, re.IGNORECASE) is not None

"""The page for people, as it was built: one document that is asked for anew each time, and files that never change.

It holds nothing of anybody's, so that whoever can reach the server may have it. Who one is goes with the requests that
the page makes: it keeps the token, which came in the part of its address that browsers keep to themselves.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.errors import ApiError

ASSETS: Final = "/assets/"

DOCUMENT: Final = "page.html"

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


MEDIA_TYPES: Final[Mapping[str, str]] = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
"""Not those that this machine knows: a browser runs nothing that is called something else."""


class BuiltFile(msgspec.Struct, frozen=True):
    media_type: str
    tag: str
    plain: bytes
    zipped: bytes


def routes() -> list[Route]:
    return routes_of(
        [
            Endpoint(
                method="GET",
                path="/",
                handler=show_page,
                summary="The page for people",
                answers={200: None, 304: None},
                media_type="text/html",
                is_public=True,
            ),
            Endpoint(
                method="GET",
                path="/assets/{name}",
                handler=show_file,
                summary="A file of that page",
                answers={200: None, 304: None},
                is_public=True,
            ),
        ]
    )


async def show_page(request: Request) -> Response:
    headers = {
        "content-security-policy": CONTENT_POLICY,
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
    }
    return _answer(request, built_file(DOCUMENT), headers)


async def show_file(request: Request) -> Response:
    name = request.path_params["name"]
    found = built_file(name) if name in file_names() and name != DOCUMENT else None
    if found is None:
        raise ApiError(404, "not_found", "There is no such file. A page from before an upgrade has to be loaded anew.")
    return _answer(request, found, {"cache-control": "public, max-age=31536000, immutable"})


@cache
def file_names() -> frozenset[str]:
    return frozenset(found.name for found in resources.files("holdfast.web").joinpath("built").iterdir())


@cache
def built_file(name: str) -> BuiltFile:
    plain = resources.files("holdfast.web").joinpath("built", name).read_bytes()
    media_type = MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    tag = f'W/"{hashlib.sha256(plain).hexdigest()[:32]}"'  # Weak: it is the same one however it is packed.
    return BuiltFile(media_type=media_type, tag=tag, plain=plain, zipped=gzip.compress(plain, 9, mtime=0))


def _answer(request: Request, found: BuiltFile, headers: dict[str, str]) -> Response:
    headers = {**headers, "vary": "accept-encoding", "etag": found.tag}
    if found.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(found.zipped, 200, {**headers, "content-encoding": "gzip"}, media_type=found.media_type)
    return Response(found.plain, 200, headers, media_type=found.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether gzip is named, and not with a weight of nothing."""
    return re.search(r"(?:^|,)\s*gzip\s*(?:$|,|;\s*q=(?:1|0\.0*[1-9]))", accepted, re.IGNORECASE) is not None

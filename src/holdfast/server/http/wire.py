"""JSON in and out. An error in a body or query names its place, and is raised before anything is done."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from holdfast.events.codec import to_bytes
from holdfast.server.http.errors import ApiError
from holdfast.server.json_bounds import BODY, JsonBounds, TooCostly, check

PASSED_OVER_BYTES: Final = 16_000_000
"""How much more of a body that is too long is read and dropped: a client that is still sending does not read the
response."""

BODY_SECONDS: Final = 120.0
"""How long the server waits for a whole body."""

LARGE_BODY_BYTES: Final = 1_000_000
LARGE_BODIES_BYTES: Final = 400_000_000
"""The memory that all bodies larger than `LARGE_BODY_BYTES` share while they arrive; one body takes up to a quarter of
it. A client that may send one may send many at once, and a process without memory would end everyone's sessions."""

HALF_CHARACTER: Final = "an escape in it, such as \\ud800 alone, is half of a character."

_WHOLE: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")

CLOSE_CONNECTION: Final = {"connection": "close"}

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

T = TypeVar("T")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with the value as JSON."""
    return Response(to_bytes(value), status, headers, media_type="application/json")


def no_content() -> Response:
    return Response(status_code=204)


async def read_body(request: Request, kind: type[T], *, limit: int, bounds: JsonBounds = BODY) -> T:
    """The request's body as a value of that type. An absent body is an empty object. JSON that would take much time or
    memory to parse is refused first."""
    body = await read_bytes(request, limit=limit) or b"{}"
    try:
        await check(body, bounds)
    except TooCostly as error:
        raise ApiError(422, error.code, str(error)) from error
    return parse(body, kind)


class LargeBodies:
    """The memory for large bodies, shared by the whole process."""

    def __init__(self) -> None:
        self._taken = 0

    @contextlib.contextmanager
    def room(self) -> Iterator[Callable[[int], None]]:
        """For one body: a function that reserves memory for its size so far. The context gives all of it back."""
        reserved = 0

        def grow(size: int) -> None:
            nonlocal reserved
            more = size - reserved if size > LARGE_BODY_BYTES else 0
            if self._taken + more > LARGE_BODIES_BYTES:
                text = "Too many large bodies are coming at once. Send it again in a moment."
                raise ApiError(503, "bodies_too_many", text, retry_after=1.0, headers=CLOSE_CONNECTION)
            reserved += more
            self._taken += more

        try:
            yield grow
        finally:
            self._taken -= reserved


_large_bodies = LargeBodies()


async def read_bytes(request: Request, *, limit: int) -> bytes:
    """The raw body. A body longer than the limit is refused, and not kept while its rest arrives."""
    async with held_body(request, limit=limit) as body:
        return body


@contextlib.asynccontextmanager
async def held_body(request: Request, *, limit: int) -> AsyncIterator[bytes]:
    """The raw body, for a handler that works on it for a while: its memory stays reserved until the context ends."""
    with _large_bodies.room() as grow:
        yield await _read_bytes(request, limit, grow)


async def _read_bytes(request: Request, limit: int, grow: Callable[[int], None]) -> bytes:
    most = limit + PASSED_OVER_BYTES
    if int(request.headers.get("content-length", "0")) > most:
        raise _too_large(limit)
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise _too_large(limit)
                if size <= limit:
                    grow(size)
                    body += piece
                else:
                    body.clear()
    except TimeoutError:
        raise ApiError(408, "body_late", "The body did not come in time.", headers=CLOSE_CONNECTION) from None
    except ClientDisconnect:
        raise ApiError(400, "body_cut", "The request ended before its body did.") from None
    if size > limit:
        raise _too_large(limit)
    return bytes(body)


def parse(body: bytes, kind: type[T]) -> T:
    """JSON as a value of that type. Raises `ApiError` for an unknown field, a wrong type or invalid JSON."""
    try:
        value: T = _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid", f"{error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = HALF_CHARACTER if _HALF.search(_WHOLE.sub(b"", body)) else f"{error}."
        raise ApiError(422, "json_invalid", f"The body is not JSON: {why}") from error
    return value


def read_query(request: Request, kind: type[T]) -> T:
    """The query parameters as a value of that type."""
    parameters = dict(request.query_params)
    if len(parameters) != len(request.query_params.multi_items()):
        raise ApiError(422, "invalid", "A query parameter was given twice.")
    try:
        value: T = msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid", f"{error} of the query.") from error
    return value


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"A body has at most {limit:,} bytes here.", headers=CLOSE_CONNECTION)

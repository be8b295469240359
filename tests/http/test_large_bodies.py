"""Large bodies that come at once share what memory there is for them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from starlette.types import Message

from holdfast.server.http import wire
from holdfast.server.http.errors import ApiError

LIMIT = 100_000_000


def coming(*pieces: bytes) -> tuple[Request, asyncio.Event, asyncio.Event]:
    """A request whose last piece waits for the second event; the first says that the others were read."""
    read, rest = asyncio.Event(), asyncio.Event()

    async def messages() -> AsyncIterator[Message]:
        for piece in pieces:
            yield {"type": "http.request", "body": piece, "more_body": True}
        read.set()
        await rest.wait()
        yield {"type": "http.request", "body": b"", "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, messages().__anext__), read, rest


async def test_bodies_that_are_too_large_together_are_refused_and_their_room_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "LARGE_BODIES_BYTES", 3_000_000)
    large, small = b"x" * 2_000_000, b"x" * wire.LARGE_BODY_BYTES
    request, read, rest = coming(large)
    first = asyncio.create_task(wire.read_bytes(request, limit=LIMIT))
    await read.wait()
    with pytest.raises(ApiError) as refused:
        await wire.read_bytes(coming(large)[0], limit=LIMIT)
    assert (refused.value.status, refused.value.code) == (503, "bodies_too_many")
    others, _, others_rest = coming(small)
    others_rest.set()
    assert await wire.read_bytes(others, limit=LIMIT) == small, "what is not large is always taken"
    rest.set()
    assert await first == large
    again, _, again_rest = coming(large)
    again_rest.set()
    assert await wire.read_bytes(again, limit=LIMIT) == large

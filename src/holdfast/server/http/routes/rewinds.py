"""Rewinds: let a session continue from an earlier position."""

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.events.ids import Position
from holdfast.protocol.session import SessionView
from holdfast.server.chosen_id import ChosenId
from holdfast.server.errors import Invalid
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.wire import json_response
from holdfast.server.views.sessions import session_view

REWIND_SECONDS: Final = 10.0
"""How long a rewind waits for the running turn to end and for the session's holder to carry the rewind out."""


class RewindBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    to: Annotated[int, Meta(ge=1, le=2**53)]
    """The last position that stays. A running turn is stopped first."""
    rewind_id: ChosenId | None = None
    """The same id again is the same rewind."""


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/rewind",
    summary="Continue from an earlier position",
    body=RewindBody,
    result=SessionView,
)
async def rewind(call: HttpCall) -> Response:
    body = await call.body(RewindBody)
    row = await call.operations.session(call.key)
    await call.check_use()
    check_position(body.to, row.head)
    try:
        async with asyncio.timeout(REWIND_SECONDS):
            await call.operations.rewind(
                call.key, Position(body.to), rewind_id=body.rewind_id, stops_turn=row.status != "idle"
            )
    except TimeoutError:
        message = "The rewind was accepted, but nobody has carried it out yet. Ask again under the same rewind_id."
        raise ApiError(503, "not_rewound_yet", message, retry_after=1) from None
    return json_response(session_view(await call.operations.session(call.key)))


def check_position(position: int, head: Position) -> None:
    if position > head:
        raise Invalid("position_invalid", f"The session ends at position {head}.")

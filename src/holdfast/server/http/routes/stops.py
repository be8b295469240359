"""Stops: end the running turn of a session."""

import asyncio
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.events.ids import Position, TurnId
from holdfast.live.live import Delta
from holdfast.protocol.stop import Stopped
from holdfast.server.chosen_id import ChosenId
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.store.store import Cursor


class CancelBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stop_id: ChosenId | None = None
    """The same id again is the same stop."""
    turn_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Stop only if this is the running turn."""
    keep_queued: bool = False
    """Leave the waiting messages in the queue. Otherwise the response returns them, if the caller's role may change the
    session: a stop by a caller who may only read it leaves them there."""


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/cancel",
    summary="Stop the running turn",
    body=CancelBody,
    result=Stopped,
)
async def stop(call: HttpCall) -> Response:
    cancel = await call.body(CancelBody)
    position = (await call.operations.session(call.key)).head
    stopped = await call.operations.stop(
        call.key,
        stop_id=cancel.stop_id,
        keep_queued=cancel.keep_queued or not await call.may_change(),
        meant_for=TurnId(cancel.turn_id) if cancel.turn_id is not None else None,
    )
    if stopped.outcome == "stopping":
        stopped = await _until_stopped(call, stopped, position)
    return json_response(stopped)


async def _until_stopped(call: HttpCall, stopped: Stopped, position: Position) -> Stopped:
    """Wait a little for the outcome of the stop; the same id asked again later returns it."""
    readings = call.operations.read(call.key, Cursor(position)).follow()
    try:
        async with asyncio.timeout(call.service.settings.stop_wait_seconds), aclosing(readings):
            async for reading in readings:
                if isinstance(reading, Delta):
                    continue
                receipt = await call.operations.store.receipt(call.key, f"stop:{stopped.stop_id}")
                if receipt is not None and receipt.state == "promoted":
                    return msgspec.convert(
                        {**msgspec.to_builtins(stopped), "outcome": receipt.outcome or "stopped"}, Stopped
                    )
    except TimeoutError:
        pass
    return stopped

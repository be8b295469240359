"""Compactions: summarise the older part of a session's conversation on request, or give up the one under way."""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.protocol.compaction import Compacted, CompactionCancelled
from holdfast.server.chosen_id import ChosenId
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.operations.compactions import MAX_COMPACTION_INSTRUCTIONS


class CompactBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    instructions: Annotated[str, Meta(max_length=MAX_COMPACTION_INSTRUCTIONS)] = ""
    """What the summary should keep, in the words of the person who asks for it."""
    compaction_id: ChosenId | None = None
    """The same id again is the same compaction."""
    wait: Annotated[float, Meta(ge=0, le=30)] = 0
    """How many seconds to wait for the end of the compaction; the same id asked again later returns it."""


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/compact",
    summary="Summarise the older part of the conversation now",
    body=CompactBody,
    result=Compacted,
)
async def compact(call: HttpCall) -> Response:
    body = await call.body(CompactBody)
    await call.operations.session(call.key)
    await call.check_use()
    compacted = await call.operations.compact(
        call.key, instructions=body.instructions, compaction_id=body.compaction_id, wait_seconds=body.wait
    )
    return json_response(compacted)


@endpoint(
    "DELETE",
    "/v1/sessions/{session_id}/compact",
    summary="Give up the compaction that is under way",
    result=CompactionCancelled,
)
async def cancel_compaction(call: HttpCall) -> Response:
    await call.operations.session(call.key)
    await call.check_change()
    seconds = call.service.settings.stop_wait_seconds
    return json_response(await call.operations.cancel_compaction(call.key, wait_seconds=seconds))

"""The open requests of a session as the values that clients see: the store's rows, with their content from the log."""

from collections.abc import Collection
from contextlib import aclosing
from typing import Any

from holdfast.events.body import Body
from holdfast.events.ids import Key, RequestId
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.turn import TurnStarted
from holdfast.protocol.request import RequestView
from holdfast.server.log_tail import events_backwards
from holdfast.server.operations import Operations
from holdfast.store.store import RequestRow


async def request_views(operations: Operations, key: Key) -> tuple[RequestView, ...]:
    """The open requests, oldest first."""
    rows = await operations.requests(key)
    details = await details_of(operations, key, {row.request_id for row in rows})
    return tuple(_view(row, details.get(row.request_id, {})) for row in rows)


async def details_of(
    operations: Operations, key: Key, request_ids: Collection[RequestId]
) -> dict[RequestId, dict[str, Any]]:
    """The details of each request. All requests belong to the unfinished turn, so only that turn is read."""
    details: dict[RequestId, dict[str, Any]] = {}
    head = (await operations.session(key)).head
    async with aclosing(events_backwards(operations.store, key, head)) as events:
        async for event in events:
            if len(details) == len(request_ids) or isinstance(event.body, TurnStarted):
                break
            request = _details(event.body)
            if request is not None and request[0] in request_ids:
                details[request[0]] = request[1]
    return details


def _details(body: Body) -> tuple[RequestId, dict[str, Any]] | None:
    match body:
        case PermissionRequested():
            return body.request_id, {
                "tool_name": body.tool_name,
                "permission": body.kind,
                "subject": body.subject,
                "rule": body.rule,
                "shown": body.details,
            }
        case ExternalToolRequested():
            return body.request_id, {"tool_name": body.tool_name, "arguments": body.arguments}
        case UserInputRequested():
            return body.request_id, {
                "question": body.question,
                "choices": body.choices,
                "allow_freeform": body.allow_freeform,
            }
        case _:
            return None


def _view(row: RequestRow, details: dict[str, Any]) -> RequestView:
    return RequestView(
        id=row.request_id,
        kind=row.kind,
        title=row.title,
        turn_id=row.turn_id,
        tool_call_id=row.tool_call_id,
        opened_at=row.opened_at,
        details=details,
    )

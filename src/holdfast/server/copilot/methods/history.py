"""Rewinds a conversation. Only messages are taken back; files stay as they are."""

from typing import Any, Final

from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.projection import CopilotProjection, WireEvent, without_rewound
from holdfast.server.errors import Conflict
from holdfast.store.log_pages import whole_log

UNTRACKED: Final = "file-change-tracking-disabled"
CONVERSATION: Final = "conversation"

BEGINNING: Final = Position(1)
"""A rewind always keeps the session's first event."""


@method("session.history.truncate")
async def truncate(call: RpcCall) -> Any:
    return {"eventsRemoved": await _rewind(call, call.text("eventId"))}


@method("session.history.rewind")
async def rewind(call: RpcCall) -> Any:
    untouched: dict[str, Any] = {"restoredFiles": [], "skippedFiles": []}
    if call.text("mode") != CONVERSATION:
        return {"outcome": UNTRACKED, **untouched}
    try:
        removed = await _rewind(call, call.text("eventId"))
    except Conflict:
        return {"outcome": "session-busy", **untouched}
    return {"outcome": "success", "eventsRemoved": removed, **untouched}


@method("session.history.previewRewind")
async def preview_rewind(call: RpcCall) -> Any:
    call.attached()
    return {"available": False, "fileCount": 0, "files": [], "reason": UNTRACKED}


@method("session.history.listRewindPoints")
async def list_rewind_points(call: RpcCall) -> Any:
    shown = await _shown(call)
    return {"fileChangeTrackingEnabled": False, "points": [_point(wire) for _, wire in shown if _starts_turn(wire)]}


def _starts_turn(wire: WireEvent) -> bool:
    return wire.type == "user.message" and wire.data.get("delivery") != "steering"


def _point(wire: WireEvent) -> dict[str, Any]:
    return {
        "eventId": wire.id,
        "userMessage": wire.data["content"],
        "timestamp": wire.timestamp,
        "canRestoreFiles": False,
        "turnChangedFiles": False,
        "fileCount": 0,
        "linesAdded": 0,
        "linesRemoved": 0,
        "isAutopilotContinuation": False,
    }


async def _rewind(call: RpcCall, event_id: str) -> int:
    """Rewind to just before an event, and return how many events clients can no longer read."""
    shown = await _shown(call)
    target = next((event for event, wire in shown if wire.id == event_id), None)
    if target is None:
        raise call.failed(f"Event {event_id} not found in session")
    kept = max(BEGINNING, Position(target.position - 1))
    with call.connection.peer.waiting():
        await call.service.operations.rewind(call.key, kept)
    return sum(event.position > kept for event, _ in shown)


async def _shown(call: RpcCall) -> list[tuple[Event, WireEvent]]:
    """The log events that clients may read again, each with its wire event."""
    log = await whole_log(call.service.operations.store, call.attached().key)
    if log is None:
        raise call.failed(f"Session not found: {call.session_id}")
    projection = CopilotProjection(call.session_id, call.service.settings.instructions)
    pairs = ((event, wire) for event in without_rewound(log[1]) for wire in projection.project(event))
    return [(event, wire) for event, wire in pairs if not wire.ephemeral]

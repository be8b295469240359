"""Reads a session's events by cursor, as an alternative to notifications, and lets clients add log lines.

Persisted events are in the store. The hub numbers the events that it sends and keeps the last of them, ephemeral ones
included. A cursor holds a number, valid while that hub still has the events after it, and the id of the last persisted
event, valid for ever.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.events.ids import Key
from holdfast.events.session import SessionInfo
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.hub import Hub
from holdfast.server.copilot.projection import CopilotProjection, WireEvent, without_rewound
from holdfast.server.errors import Conflict, Invalid
from holdfast.store.log_pages import whole_log

MAX_EVENTS: Final = 1_000
DEFAULT_EVENTS: Final = 200
"""Size of a page if the client names none."""

MAX_WAIT_MS: Final = 30_000

CATCHING_UP_SECONDS: Final = 5.0
"""Time that a read waits for the hub to send what is already in the log. It takes long only if the store has
trouble."""

MAX_ATTEMPTS: Final = 10
MAX_DIGITS: Final = 20

MAX_LINE_CHARACTERS: Final = 64_000
MAX_TYPE_CHARACTERS: Final = 200

ANY_TYPE: Final = "*"

NOTIFICATION: Final = "notification"
"""The type of a line that a client adds without naming one."""

Level = Literal["info", "warning", "error"]

LEVELS: Final[dict[str, tuple[str, str]]] = {
    "info": ("session.info", "infoType"),
    "warning": ("session.warning", "warningType"),
    "error": ("session.error", "errorType"),
}


# Log lines of clients


@method("session.log")
async def log(call: RpcCall) -> Any:
    attached, message = call.attached(), call.text("message")
    kind = call.param("type", str, "") or NOTIFICATION
    level = call.param("level", str, "") or "info"
    if level not in LEVELS:
        raise Invalid("level_invalid", f"{level!r} is no level. Use one of {', '.join(LEVELS)}.")
    if len(message) > MAX_LINE_CHARACTERS or len(kind) > MAX_TYPE_CHARACTERS:
        raise Invalid(
            "too_long", f"A message has at most {MAX_LINE_CHARACTERS:,} characters, and a type {MAX_TYPE_CHARACTERS}."
        )
    if call.param("ephemeral", bool, False):
        event_type, field = LEVELS[level]
        return {"eventId": attached.hub.publish(event_type, {field: kind, "message": message}).id}
    info = SessionInfo(info_type=kind, message=message, level=msgspec.convert(level, Level))
    return {"eventId": (await call.service.operations.record(attached.key, info)).id}


# Reading


class EventCursor(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded cursor."""

    hub: str
    number: int | Literal["history", "backward"]
    """The hub's number of the last event read; or a marker for a read of the history, forward or backward."""
    event: str
    """Id of the last persisted event read; empty before the first."""

    def __str__(self) -> str:
        return f"{self.hub}|{self.number}|{self.event}"


Numbered = tuple[int | Literal["history"], WireEvent]


@method("session.eventLog.tail")
async def tail(call: RpcCall) -> Any:
    hub = await _caught_up(call)
    return {"cursor": str(_end(hub))}


@method("session.eventLog.read")
async def read(call: RpcCall) -> Any:
    hub = await _caught_up(call)
    cursor = _parsed_cursor(call.param("cursor", str, ""))
    if _goes_back(call, cursor):
        return _read_back(await persisted(call, call.key), cursor, _limit(call), hub.id)
    wait_seconds = min(max(call.param("waitMs", int, 0), 0), MAX_WAIT_MS) / 1000
    activity = hub.activity
    page = await _read_forward(call, hub, cursor)
    if wait_seconds and not page["events"] and page["cursorStatus"] == "ok":
        try:
            with call.connection.peer.waiting():
                async with asyncio.timeout(wait_seconds):
                    while not page["events"]:
                        await activity.wait()
                        activity = hub.activity
                        page = await _read_forward(call, hub, cursor)
        except TimeoutError:
            pass
    return page


async def _caught_up(call: RpcCall) -> Hub:
    """The session's hub, after it has sent everything that was in the log when this request arrived."""
    attached = call.attached()
    head = (await call.service.operations.session(attached.key)).head
    try:
        async with asyncio.timeout(CATCHING_UP_SECONDS):
            await attached.hub.caught_up(head)
    except TimeoutError:
        pass  # A later read returns the rest.
    return attached.hub


def _parsed_cursor(text: str) -> EventCursor | None:
    if not text:
        return None
    match text.split("|"):
        case hub, ("history" | "backward") as direction, event:
            return EventCursor(hub=hub, number=direction, event=event)
        case hub, number, event if number.isascii() and number.isdigit() and len(number) < MAX_DIGITS:
            return EventCursor(hub=hub, number=int(number), event=event)
        case _:
            raise Invalid(
                "cursor_invalid", "This is no cursor of this runtime. Leave it out to read from the beginning."
            )


def _limit(call: RpcCall) -> int:
    return min(max(call.param("max", int, DEFAULT_EVENTS), 1), MAX_EVENTS)


async def _read_forward(call: RpcCall, hub: Hub, cursor: EventCursor | None) -> dict[str, Any]:
    following, status = await _following(call, hub, cursor)
    matching = [numbered for numbered in following if _matches_filter(call, numbered[1])]
    page = matching[: _limit(call)]
    has_more = len(matching) > len(page)
    if has_more:
        next_cursor = _cursor_after(hub, page[-1])
    elif following:
        next_cursor = _cursor_after(hub, following[-1])
    else:
        next_cursor = cursor or _end(hub)
    events = [wire for _, wire in page]
    return {"events": events, "cursor": str(next_cursor), "hasMore": has_more, "cursorStatus": status}


def _matches_filter(call: RpcCall, wire: WireEvent) -> bool:
    types = call.params.get("types") or ANY_TYPE
    if types != ANY_TYPE and wire.type not in call.param("types", list[str], []):
        return False
    if call.params.get("agentIds"):
        return False  # No event belongs to an agent: this runtime has none.
    return not wire.ephemeral or call.params.get("includeEphemeral") is not False


async def _following(call: RpcCall, hub: Hub, cursor: EventCursor | None) -> tuple[Sequence[Numbered], str]:
    """All events after a cursor, and its status. An expired cursor, whose event is gone, reads from the beginning."""
    if cursor is not None and cursor.hub == hub.id and isinstance(cursor.number, int):
        first = hub.kept[0][0] if hub.kept else hub.last_number + 1
        if first - 1 <= cursor.number <= hub.last_number:
            return [numbered for numbered in hub.kept if numbered[0] > cursor.number], "ok"
    whole = await _whole(call, hub)
    if cursor is None or not cursor.event:
        return whole, "ok" if cursor is None or cursor.hub == hub.id else "expired"
    for index, (_, wire) in enumerate(whole):
        if wire.id == cursor.event:
            return whole[index + 1 :], "ok"
    return whole, "expired"


async def _whole(call: RpcCall, hub: Hub) -> list[Numbered]:
    """The history that the hub has sent, joined with the events that the hub kept, ephemeral ones included."""
    for _ in range(MAX_ATTEMPTS):
        history = await persisted(call, call.key)
        kept: list[Numbered] = [numbered for numbered in hub.kept if numbered[0] >= hub.first_after_rewind]
        first = next((wire.id for _, wire in kept if not wire.ephemeral), None)
        ids = [wire.id for wire in history]
        if first in ids:
            return [*_as_history(history[: ids.index(first)]), *kept]
        if first is None or kept[0][0] == hub.first_after_rewind:
            # The hub has not sent the later events of the history yet.
            end = ids.index(hub.last_persisted) + 1 if first is None and hub.last_persisted in ids else len(ids)
            return [*_as_history(history[:end]), *kept]
        # The hub dropped events while the history was read, so some are in neither list: read again.
    raise Conflict("busy", "The session produces events faster than they can be read. Try again.")


def _as_history(events: list[WireEvent]) -> list[Numbered]:
    return [("history", wire) for wire in events]


def _cursor_after(hub: Hub, numbered: Numbered) -> EventCursor:
    number, wire = numbered
    return EventCursor(hub=hub.id, number=number, event=(wire.parent_id or "") if wire.ephemeral else wire.id)


def _end(hub: Hub) -> EventCursor:
    return EventCursor(hub=hub.id, number=hub.last_number, event=hub.last_persisted or "")


# Reading backwards


def _goes_back(call: RpcCall, cursor: EventCursor | None) -> bool:
    """Whether to read backward. A cursor keeps its direction; the client's `direction` counts only without one."""
    return cursor.number == "backward" if cursor is not None else call.params.get("direction") == "backward"


def _read_back(history: list[WireEvent], cursor: EventCursor | None, limit: int, reader: str) -> dict[str, Any]:
    """One page, newest page first; the events within a page are in log order."""
    ids = [wire.id for wire in history]
    is_known = cursor is None or cursor.event in ids
    end = ids.index(cursor.event) if cursor is not None and is_known else len(ids)
    start = max(0, end - limit)
    oldest = ids[start] if start < end else (cursor.event if cursor is not None else "")
    return {
        "events": history[start:end],
        "cursor": str(EventCursor(hub=reader, number="backward", event=oldest)),
        "hasMore": start > 0,
        "cursorStatus": "ok" if is_known else "expired",
    }


@method("session.getMessages")
async def get_messages(call: RpcCall) -> Any:
    call.attached()
    return {"events": await persisted(call, call.key)}


async def persisted(call: RpcCall, key: Key) -> list[WireEvent]:
    """All persisted events of a session, in order."""
    log = await whole_log(call.service.operations.store, key)
    if log is None:
        raise call.failed(f"Session not found: {key.session}")
    projection = CopilotProjection(key.session, call.service.settings.instructions)
    shown = [wire for event in without_rewound(log[1]) for wire in projection.project(event)]
    return [wire for wire in shown if not wire.ephemeral]


@method("sessions.readPersistedEvents")
async def read_persisted(call: RpcCall) -> Any:
    """Read the persisted events of a session. The client need not be attached to it."""
    history = await persisted(call, call.key)
    cursor, limit = _parsed_cursor(call.param("cursor", str, "")), _limit(call)
    if _goes_back(call, cursor):
        return _read_back(history, cursor, limit, call.session_id)
    ids = [wire.id for wire in history]
    start = 0 if cursor is None else ids.index(cursor.event) + 1 if cursor.event in ids else len(ids)
    page = history[start : start + limit]
    last = page[-1].id if page else cursor.event if cursor is not None else ""
    return {
        "events": page,
        "cursor": str(EventCursor(hub=call.session_id, number="history", event=last)),
        "hasMore": start + limit < len(history),
        "cursorStatus": "ok" if cursor is None or cursor.event in ids else "expired",
    }


# Interests


@method("session.eventLog.registerInterest")
async def register_interest(call: RpcCall) -> Any:
    """Issue a handle. It changes nothing, because every client is sent every event."""
    attached = call.attached()
    call.text("eventType")
    attached.handles += 1
    return {"handle": f"interest-{attached.handles}"}


@method("session.eventLog.releaseInterest")
async def release_interest(call: RpcCall) -> Any:
    call.attached()
    call.text("handle")
    return {"success": True}

"""A session's events, read by cursor instead of being listened to; and lines that clients add to them.

What may be read again is in the store; what was only told is kept for a while by the hub, which numbers what it tells.
A cursor has both: a number, good as long as that hub has what follows it, and the last event before it that is in the
store, good for ever.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.events.session import SessionInfo
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.hub import Hub
from holdfast.server.copilot.methods.sessions import persisted
from holdfast.server.copilot.projection import WireEvent
from holdfast.server.errors import Conflict, Invalid

MAX_EVENTS: Final = 1_000
SOME_EVENTS: Final = 200
"""What is read at once, if the client does not say."""

MAX_WAIT_MS: Final = 30_000

CATCHING_UP_SECONDS: Final = 5.0
"""How long a reader waits for what is in the log already to be told. It is a moment, unless the store is in trouble."""

TRIES: Final = 10
MAX_DIGITS: Final = 20

MAX_LINE_CHARACTERS: Final = 64_000
MAX_TYPE_CHARACTERS: Final = 200

ANY_TYPE: Final = "*"

NOTIFICATION: Final = "notification"
"""The kind of a line that a client adds, if it says none."""

Level = Literal["info", "warning", "error"]

LEVELS: Final[dict[str, tuple[str, str]]] = {
    "info": ("session.info", "infoType"),
    "warning": ("session.warning", "warningType"),
    "error": ("session.error", "errorType"),
}


# Lines that clients add


@method("session.log")
async def log(call: RpcCall) -> Any:
    attached, message = call.attached(), call.text("message")
    kind = call.param("type", str, "") or NOTIFICATION
    level = call.param("level", str, "") or "info"
    if level not in LEVELS:
        raise Invalid("level_invalid", f"{level!r} is no level; {', '.join(LEVELS)} are.")
    if len(message) > MAX_LINE_CHARACTERS or len(kind) > MAX_TYPE_CHARACTERS:
        raise Invalid("too_long", f"A line has at most {MAX_LINE_CHARACTERS:,} characters.")
    if call.param("ephemeral", bool, False):
        event_type, named = LEVELS[level]
        return {"eventId": attached.hub.publish(event_type, {named: kind, "message": message}).id}
    info = SessionInfo(info_type=kind, message=message, level=msgspec.convert(level, Level))
    return {"eventId": (await call.service.operations.record(attached.key, info)).id}


# Reading


class EventCursor(msgspec.Struct, frozen=True, kw_only=True):
    """What a cursor says."""

    hub: str
    number: int | Literal["history", "backward"]
    """The number of the last event that was read, or: it was of the history; or: of that, going back."""
    event: str
    """The last event read that is in the store; empty before the first."""

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
    place = _place(call.param("cursor", str, ""))
    if _goes_back(call, place):
        return _read_back(await persisted(call, call.key), place, _limit(call), hub.id)
    wait_seconds = min(max(call.param("waitMs", int, 0), 0), MAX_WAIT_MS) / 1000
    activity = hub.activity
    found = await _read_on(call, hub, place)
    if wait_seconds and not found["events"] and found["cursorStatus"] == "ok":
        try:
            with call.connection.peer.waiting():
                async with asyncio.timeout(wait_seconds):
                    while not found["events"]:
                        await activity.wait()
                        activity = hub.activity
                        found = await _read_on(call, hub, place)
        except TimeoutError:
            pass
    return found


async def _caught_up(call: RpcCall) -> Hub:
    """The session's hub, once it has told what was written before this was asked."""
    attached = call.attached()
    head = (await call.service.operations.session(attached.key)).head
    try:
        async with asyncio.timeout(CATCHING_UP_SECONDS):
            await attached.hub.caught_up(head)
    except TimeoutError:
        pass  # The rest is read later.
    return attached.hub


def _place(cursor: str) -> EventCursor | None:
    if not cursor:
        return None
    match cursor.split("|"):
        case hub, ("history" | "backward") as way, event:
            return EventCursor(hub=hub, number=way, event=event)
        case hub, number, event if number.isascii() and number.isdigit() and len(number) < MAX_DIGITS:
            return EventCursor(hub=hub, number=int(number), event=event)
        case _:
            raise Invalid("cursor_invalid", "This is no cursor that was given out here.")


def _limit(call: RpcCall) -> int:
    return min(max(call.param("max", int, SOME_EVENTS), 1), MAX_EVENTS)


async def _read_on(call: RpcCall, hub: Hub, place: EventCursor | None) -> dict[str, Any]:
    following, status = await _following(call, hub, place)
    wanted = [found for found in following if _is_wanted(call, found[1])]
    page = wanted[: _limit(call)]
    has_more = len(wanted) > len(page)
    if has_more:
        cursor = str(_behind(hub, page[-1]))
    elif following:
        cursor = str(_behind(hub, following[-1]))
    else:
        cursor = str(place or _end(hub))
    events = [wire for _, wire in page]
    return {"events": events, "cursor": cursor, "hasMore": has_more, "cursorStatus": status}


def _is_wanted(call: RpcCall, wire: WireEvent) -> bool:
    types = call.params.get("types") or ANY_TYPE
    if types != ANY_TYPE and wire.type not in call.param("types", list[str], []):
        return False
    if call.params.get("agentIds"):
        return False  # All there is, is of the session itself.
    return not wire.ephemeral or call.params.get("includeEphemeral") is not False


async def _following(call: RpcCall, hub: Hub, place: EventCursor | None) -> tuple[Sequence[Numbered], str]:
    """All that comes after a place. One that can't be found any more is as good as none, and that is told."""
    if place is not None and place.hub == hub.id and isinstance(place.number, int):
        first = hub.kept[0][0] if hub.kept else hub.last_number + 1
        if first - 1 <= place.number <= hub.last_number:
            return [found for found in hub.kept if found[0] > place.number], "ok"
    whole = await _whole(call, hub)
    if place is None or not place.event:
        return whole, "ok" if place is None or place.hub == hub.id else "expired"
    for index, (_, wire) in enumerate(whole):
        if wire.id == place.event:
            return whole[index + 1 :], "ok"
    return whole, "expired"


async def _whole(call: RpcCall, hub: Hub) -> list[Numbered]:
    """The history as far as it was told, and from where the hub has it, also what was only told."""
    for _ in range(TRIES):
        history = await persisted(call, call.key)
        kept: list[Numbered] = [found for found in hub.kept if found[0] >= hub.first_after_rewind]
        first = next((wire.id for _, wire in kept if not wire.ephemeral), None)
        ids = [wire.id for wire in history]
        if first in ids:
            return [*_as_history(history[: ids.index(first)]), *kept]
        if first is None or kept[0][0] == hub.first_after_rewind:
            # What is in the history beyond this was not told yet.
            end = ids.index(hub.last_persisted) + 1 if first is None and hub.last_persisted in ids else len(ids)
            return [*_as_history(history[:end]), *kept]
        # So much was told while the history was read that something is in neither.
    raise Conflict("busy", "So much happens in this session that it can't be read from here on. Try again.")


def _as_history(events: list[WireEvent]) -> list[Numbered]:
    return [("history", wire) for wire in events]


def _behind(hub: Hub, found: Numbered) -> EventCursor:
    number, wire = found
    return EventCursor(hub=hub.id, number=number, event=(wire.parent_id or "") if wire.ephemeral else wire.id)


def _end(hub: Hub) -> EventCursor:
    return EventCursor(hub=hub.id, number=hub.last_number, event=hub.last_persisted or "")


# Reading backwards


def _goes_back(call: RpcCall, place: EventCursor | None) -> bool:
    """A cursor knows which way it goes; only without one does the client say."""
    return place.number == "backward" if place is not None else call.params.get("direction") == "backward"


def _read_back(history: list[WireEvent], place: EventCursor | None, limit: int, reader: str) -> dict[str, Any]:
    """The newest first, page by page; each page in order."""
    ids = [wire.id for wire in history]
    is_known = place is None or place.event in ids
    end = ids.index(place.event) if place is not None and is_known else len(ids)
    start = max(0, end - limit)
    oldest = ids[start] if start < end else (place.event if place is not None else "")
    return {
        "events": history[start:end],
        "cursor": str(EventCursor(hub=reader, number="backward", event=oldest)),
        "hasMore": start > 0,
        "cursorStatus": "ok" if is_known else "expired",
    }


@method("sessions.readPersistedEvents")
async def read_persisted(call: RpcCall) -> Any:
    """The same of a session that the client need not be attached to, and of what is in the store only."""
    history = await persisted(call, call.key)
    place, limit = _place(call.param("cursor", str, "")), _limit(call)
    if _goes_back(call, place):
        return _read_back(history, place, limit, call.session_id)
    ids = [wire.id for wire in history]
    start = 0 if place is None else ids.index(place.event) + 1 if place.event in ids else len(ids)
    page = history[start : start + limit]
    last = page[-1].id if page else place.event if place is not None else ""
    return {
        "events": page,
        "cursor": str(EventCursor(hub=call.session_id, number="history", event=last)),
        "hasMore": start + limit < len(history),
        "cursorStatus": "ok" if place is None or place.event in ids else "expired",
    }


# Interests


@method("session.eventLog.registerInterest")
async def register_interest(call: RpcCall) -> Any:
    """Every client is told of everything, so that there is nothing to be changed by it."""
    attached = call.attached()
    call.text("eventType")
    attached.handles += 1
    return {"handle": f"interest-{attached.handles}"}


@method("session.eventLog.releaseInterest")
async def release_interest(call: RpcCall) -> Any:
    call.attached()
    call.text("handle")
    return {"success": True}

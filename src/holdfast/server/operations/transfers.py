"""Exports and imports: a session as one JSON document, made from one snapshot of its log.

An imported document is untrusted. It becomes a new, idle session of the importer: the conversation is kept; grants,
rules, directories, tools and an unfinished turn are not. A thread reads it event by event, so that other work continues
and memory grows little beyond the document's own size.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionStarted, MessagePinned
from holdfast.events.event import Event, Unknown
from holdfast.events.ids import Key, Owner, SessionId, random_id
from holdfast.events.message import UserMessage
from holdfast.events.request import Decision, PermissionCompleted
from holdfast.events.session import ModelChanged, SessionInfo, SessionStarted, SettingsChanged
from holdfast.events.turn import TurnStarted
from holdfast.server.errors import Invalid
from holdfast.server.json_bounds import JsonBounds, TooCostly, breathe, check_text
from holdfast.server.operations.new_log import NewLog
from holdfast.server.operations.session_document import CutDocument, Misshapen, cut
from holdfast.server.operations.sessions import SessionVerbs
from holdfast.session.state import IllegalTransition, next_phase
from holdfast.store.log_pages import NO_SNAPSHOT, pages
from holdfast.store.store import Committed, NewSession, Unit

FORMAT: Final = "holdfast-session-1"

VALUES_PER_EVENT: Final = 20
"""Twice the average of events."""


EVENTS_PER_BREATH: Final = 25


class ImportBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a document; a larger one is refused."""

    size: int = 256_000_000
    """Bytes: the log of the largest session that is still readable."""
    events: int = 1_000_000
    each: JsonBounds = JsonBounds(values=sys.maxsize, escapes=sys.maxsize, wide_bytes=sys.maxsize)
    """Bounds of each event, which is parsed at once and shown at once."""


BY_HAND: Final = ImportBounds()
"""For a caller with direct access to the database."""


class Exported(msgspec.Struct, kw_only=True):
    format: str
    session_id: SessionId
    title: str
    events: list["ExportedEvent"]


class ExportedEvent(msgspec.Struct, kw_only=True, rename="camel"):
    type: str
    version: int
    time: int
    data: msgspec.Raw


_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)

_event_decoder = msgspec.json.Decoder(ExportedEvent)


def _whole(body: Body) -> Body:
    """Nothing is hidden from this reader."""
    return body


class TransferVerbs(SessionVerbs):
    async def export_session(self, key: Key) -> bytes:
        """The whole log of a session as a JSON document."""
        return b"".join([piece async for piece in await self.export_pieces(key)])

    async def export_pieces(self, key: Key, *, shown: Callable[[Body], Body] = _whole) -> AsyncIterator[bytes]:
        """The same document in pieces, with each event as its reader may see it. Raises `NotFound` before the first
        piece or, if the session is deleted meanwhile, later. The audit log has the export before its first piece is
        read."""
        loaded = await self.store.load(key, fold_version=NO_SNAPSHOT)
        if loaded is None:
            raise self._not_found(key)
        await self.store.audit(self._told("session.exported", key.session, owner=key.owner))
        whole = Exported(format=FORMAT, session_id=key.session, title=loaded.row.title, events=[])
        begin, end = msgspec.json.encode(whole).rsplit(b"]", 1)

        async def pieces() -> AsyncIterator[bytes]:
            separator = begin
            head = 0
            async for page in pages(self.store, loaded):
                if page:
                    head = page[-1].position
                    yield separator + b",".join(msgspec.json.encode(_exported(event, shown)) for event in page)
                    separator = b","
            if head < loaded.row.head:
                raise self._not_found(key)
            yield b"]" + end

        return pieces()

    async def import_session(
        self,
        owner: Owner,
        data: bytes,
        *,
        bounds: ImportBounds = BY_HAND,
        tools: tuple[str, ...] | None = None,
    ) -> SessionId:
        """Create a new session from an exported one. Raises `Invalid` for a document that is not an exported session.
        The new session gets these tools; None: all tools of its worker."""
        if len(data) > bounds.size:
            raise Invalid("import_too_large", f"An import has at most {bounds.size:,} bytes.")
        session_id = SessionId(random_id())
        title, log, metadata = await asyncio.to_thread(_read, data, session_id, bounds, tools)
        events = log.events()
        unit = Unit(
            key=Key(owner, session_id),
            fence=None,
            events=events,
            creates=NewSession(created_at=events[0].time, metadata=metadata, tools=tools or ()),
            title=title,
            status="idle",
        )
        outcome = await self.store.commit(unit)
        self.check_quota(outcome)
        assert isinstance(outcome, Committed), "a new id is free"
        return session_id


def _exported(event: Event, shown: Callable[[Body], Body]) -> ExportedEvent:
    name, version, data = codec.encode(shown(event.body))
    return ExportedEvent(type=name, version=version, time=event.time, data=msgspec.Raw(data))


def _read(
    data: bytes, session_id: SessionId, bounds: ImportBounds, tools: tuple[str, ...] | None = None
) -> tuple[str, NewLog, dict[str, str]]:
    """All slow work: the title, the log and the metadata of the new session."""
    title, found = _parse(data, bounds)
    log = NewLog(random_id)
    metadata: dict[str, str] = {}
    view = memoryview(data)
    for number, place in enumerate(found.places):
        if number % EVENTS_PER_BREATH == 0:
            breathe()
        _check_size(data, place, bounds.each)
        event = _event(view[slice(*place)])
        body = _harmless(_body(event), session_id, tools)
        if isinstance(body, Unknown):
            continue
        _check_place(log, body)
        if isinstance(body, SessionStarted):
            metadata = body.metadata
        log.add(event.time, body)
    if log.state.head == 0:
        raise _of_newer_release()
    log.close()
    log.add(log.last_time, SessionInfo(info_type="imported", message="This session was imported."))
    return title, log, metadata


def _parse(data: bytes, bounds: ImportBounds) -> tuple[str, CutDocument]:
    """The title, and the document cut into its events."""
    try:
        most = VALUES_PER_EVENT * bounds.events
        found = cut(data, max_events=bounds.events, max_values=most, max_values_each=bounds.each.values)
        rest = msgspec.json.decode(found.rest, type=Exported)
    except (Misshapen, *_UNREADABLE) as error:
        raise Invalid("import_invalid", f"This is not an exported session: {error}") from error
    if rest.format != FORMAT:
        raise Invalid("import_invalid", f"The format {rest.format[:64]!r} is not known; {FORMAT!r} is.")
    if rest.events or not found.places or _event(data[slice(*found.places[0])]).type != "session.start":
        raise Invalid("import_invalid", "An exported session begins with session.start; this one does not.")
    return rest.title[:200], found


def _check_size(data: bytes, place: tuple[int, int], bounds: JsonBounds) -> None:
    try:
        check_text(data, bounds, place)
    except TooCostly as error:
        raise Invalid("import_invalid", f"An event is too large: {error}") from error


def _event(data: bytes | memoryview) -> ExportedEvent:
    try:
        event = _event_decoder.decode(data)
    except _UNREADABLE as error:
        raise Invalid("import_invalid", f"This is not an exported session: {error}") from error
    if not 0 <= event.time < 2**53:
        raise Invalid("import_invalid", f"A {event.type[:64]} has a time that is none.")
    return event


def _body(event: ExportedEvent) -> Body:
    try:
        body = codec.decode(event.type, event.version, memoryview(event.data))
        msgspec.msgpack.encode(body)  # As a snapshot is encoded, which allows no number of more than 64 bits.
    except (*_UNREADABLE, OverflowError) as error:
        raise Invalid("import_invalid", f"A {event.type[:64]} can't be read: {error}") from error
    return body


def _harmless(body: Body, session_id: SessionId, tools: tuple[str, ...] | None) -> Body:
    """The event without permissions, tools, settings, bounds of roles and references to the source."""
    match body:
        case SessionStarted():
            return SessionStarted(
                session_id=session_id,
                producer=body.producer,
                start_time=body.start_time,
                model=None,
                system_message=None,
                tools=tools,
                metadata={"imported_from": body.session_id[:64]},
            )
        case ModelChanged():
            return SessionInfo(info_type="model", message=f"The model was {body.new_model[:200]}.")
        case SettingsChanged():
            return SessionInfo(info_type="settings", message="The settings of the session were changed.")
        case PermissionCompleted():
            once: Decision = "approved" if body.decision == "approved-for-session" else body.decision
            return msgspec.structs.replace(body, decision=once, rules=(), place=None)
        case CompactionStarted() | CompactionEnded() | MessagePinned():
            # The importer's own model summarises the conversation when it has to.
            return SessionInfo(info_type="compaction", message="The context of the session was compacted or pinned.")
        case TurnStarted():
            return msgspec.structs.replace(body, prompt=None)
        case UserMessage():
            return msgspec.structs.replace(body, bounds=None, files=())
        case _:
            return body


def _check_place(log: NewLog, body: Body) -> None:
    """Refuse an event that can't follow on the log: an exported log is always legal, a forged one may not be."""
    state = log.state
    if state.head == 0 and not isinstance(body, SessionStarted):
        raise _of_newer_release()
    if state.head and isinstance(body, SessionStarted):
        raise Invalid("import_invalid", "A session starts once; this one starts twice.")
    try:
        next_phase(state.phase, body)
    except IllegalTransition as error:
        raise Invalid("import_invalid", f"Event {state.head + 1} can't stand there: {error}") from error


def _of_newer_release() -> Invalid:
    return Invalid("import_invalid", "This session was exported by a newer release. Upgrade Holdfast to import it.")

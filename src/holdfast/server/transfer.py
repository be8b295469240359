"""A session out of one store and into another: one JSON document, made from one snapshot.

What comes in is somebody else's word. It becomes a new, idle session of the importer that can do nothing by itself:
what was said is kept; grants, rules, directories, tools and an unfinished turn are not.
"""

import uuid
from collections.abc import Iterable

import msgspec

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.event import Event, Unknown
from holdfast.events.ids import EventId, Key, Owner, Position, SessionId
from holdfast.events.request import PermissionCompleted
from holdfast.events.session import ModelChanged, SessionInfo, SessionStarted, SettingsChanged
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.operations import Operations
from holdfast.session.bounds import Bounds
from holdfast.session.decide import Inputs, end_early, tasks_of_another
from holdfast.session.fold import fold
from holdfast.session.state import IllegalTransition, Phase, next_phase
from holdfast.store.log_pages import whole_log
from holdfast.store.store import Committed, NewSession, Store, Unit

FORMAT = "holdfast-session-1"

MAX_IMPORT_BYTES = 256_000_000
"""A log of the largest session that is still pleasant to read; more is refused before it is parsed."""


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


async def export_session(store: Store, key: Key) -> bytes:
    """The whole log of a session as a JSON document."""
    found = await whole_log(store, key)
    if found is None:
        raise NotFound("session_not_found", f"There is no session {key.session}.")
    row, log = found
    events = [_exported(event) for event in log]
    whole = Exported(format=FORMAT, session_id=key.session, title=row.title, events=events)
    return msgspec.json.encode(whole)


async def import_session(operations: Operations, owner: Owner, data: bytes) -> SessionId:
    """Make a new session of an exported one. Raises `Invalid` for a document that is none."""
    exported = _parse(data)
    session_id = SessionId(str(uuid.uuid4()))
    bodies = [(event.time, _harmless(_body(event), session_id)) for event in exported.events]
    events = _legal(_placed(bodies))
    events += _closing(events)
    started = events[0].body
    assert isinstance(started, SessionStarted), "a document that begins otherwise was refused"
    unit = Unit(
        key=Key(owner, session_id),
        fence=None,
        events=tuple(event.at(Position(0)) for event in events),
        creates=NewSession(created_at=events[0].time, metadata=started.metadata),
        title=exported.title[:200],
        status="idle",
    )
    outcome = await operations.store.commit(unit)
    assert isinstance(outcome, Committed), "a new id is not taken"
    return session_id


def _exported(event: Event) -> ExportedEvent:
    name, version, data = codec.encode(event.body)
    return ExportedEvent(type=name, version=version, time=event.time, data=msgspec.Raw(data))


def _parse(data: bytes) -> Exported:
    if len(data) > MAX_IMPORT_BYTES:
        raise Invalid("import_too_large", f"An import has at most {MAX_IMPORT_BYTES:,} bytes.")
    try:
        exported = msgspec.json.decode(data, type=Exported)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid("import_invalid", f"This is not an exported session: {error}") from error
    if exported.format != FORMAT:
        raise Invalid("import_invalid", f"The format {exported.format!r} is not known; {FORMAT!r} is.")
    if not exported.events or exported.events[0].type != "session.start":
        raise Invalid("import_invalid", "An exported session begins with session.start; this one does not.")
    return exported


def _body(event: ExportedEvent) -> Body:
    if not 0 <= event.time < 2**53:
        raise Invalid("import_invalid", f"A {event.type} has a time that is none.")
    try:
        body = codec.decode(event.type, event.version, bytes(event.data))
        msgspec.msgpack.encode(body)  # As a snapshot would: it takes no number of more than 64 bits.
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise Invalid("import_invalid", f"A {event.type} can't be read: {error}") from error
    return body


def _harmless(body: Body, session_id: SessionId) -> Body:
    """The event without what it would allow, run or point to."""
    match body:
        case SessionStarted():
            return SessionStarted(
                session_id=session_id,
                producer=body.producer,
                start_time=body.start_time,
                model=None,
                system_message=None,
                metadata={"imported_from": body.session_id[:64]},
            )
        case ModelChanged():
            return SessionInfo(info_type="model", message=f"The model was {body.new_model[:200]}.")
        case SettingsChanged():
            return SessionInfo(info_type="settings", message="The settings of the session were changed.")
        case PermissionCompleted(decision="approved-for-session"):
            return msgspec.structs.replace(body, decision="approved", rules=())
        case _:
            return body


def _placed(bodies: Iterable[tuple[int, Body]]) -> list[Event]:
    known = [(time, body) for time, body in bodies if not isinstance(body, Unknown)]
    return [
        Event(Position(number), EventId(str(uuid.uuid4())), time, body)
        for number, (time, body) in enumerate(known, start=1)
    ]


def _legal(events: list[Event]) -> list[Event]:
    """An exported log is a legal log: one that is not was made up, and is refused."""
    if not events or not isinstance(events[0].body, SessionStarted):
        raise Invalid("import_invalid", "This session was exported by a newer release. Upgrade Holdfast to import it.")
    phase = Phase.IDLE
    for number, event in enumerate(events):
        if number and isinstance(event.body, SessionStarted):
            raise Invalid("import_invalid", "A session starts once; this one starts twice.")
        try:
            phase = next_phase(phase, event.body)
        except IllegalTransition as error:
            raise Invalid("import_invalid", f"Event {event.position} can't stand there: {error}") from error
    return events


def _closing(events: list[Event]) -> list[Event]:
    """End a turn that was unfinished when the session was exported, and say where the session is from."""
    state = fold(events)
    now = events[-1].time
    bodies: list[Body] = []
    if state.turn is not None:
        inputs = Inputs(new_id=lambda: str(uuid.uuid4()), now=now, bounds=Bounds())
        bodies += end_early(state, inputs, state.turn, "interrupted").events
    bodies += tasks_of_another(state)
    bodies.append(SessionInfo(info_type="imported", message="This session was imported."))
    start = len(events) + 1
    return [
        Event(Position(start + number), EventId(str(uuid.uuid4())), now, body) for number, body in enumerate(bodies)
    ]

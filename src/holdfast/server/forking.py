"""A new session that begins as a copy of another one, all of it or up to an event."""

from collections.abc import Callable

import msgspec

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, Position, SessionId, random_id
from holdfast.events.session import SessionStarted, TitleChanged
from holdfast.server.errors import NotFound
from holdfast.server.operations import Operations
from holdfast.session.bounds import Bounds
from holdfast.session.decide import Inputs, end_early, tasks_of_another
from holdfast.session.fold import fold
from holdfast.session.state import State
from holdfast.store.log_pages import whole_log
from holdfast.store.store import Committed, NewSession, Row, Unit


async def fork_session(
    operations: Operations, source: Key, *, before: str | None, title: str, new_id: Callable[[], str] = random_id
) -> SessionId:
    """Copy what was said before the event of that id, or all of it. A turn that was under way there is cut off here:
    nothing that was asked or running is done a second time."""
    found = await whole_log(operations.store, source)
    if found is None:
        raise NotFound("session_not_found", f"There is no session {source.session}.")
    row, log = found
    made = SessionId(new_id())
    bodies = [_of_the_fork(event, made, source) for event in events_before(log, before)]
    bodies.append((row.updated_at, TitleChanged(title=title)))
    events = _placed(bodies, new_id)
    events += _closing(events, new_id)
    state = fold(events)
    unit = Unit(
        key=Key(source.owner, made),
        fence=None,
        events=tuple(event.at(Position(0)) for event in events),
        creates=_row(state, source, row),
        title=title,
        status="idle",
    )
    outcome = await operations.store.commit(unit)
    assert isinstance(outcome, Committed), "a new id is not taken"
    return made


def events_before(events: tuple[Event, ...], event_id: str | None) -> tuple[Event, ...]:
    """Those before the event of that id; raises `NotFound`. A session has its beginning in any case."""
    if event_id is None:
        return events
    for index, event in enumerate(events):
        if event.id == event_id:
            return events[: max(1, index)]
    raise NotFound("event_not_found", f"Event {event_id} not found in session")


def _of_the_fork(event: Event, made: SessionId, source: Key) -> tuple[int, Body]:
    body = event.body
    if isinstance(body, SessionStarted):
        body = msgspec.structs.replace(body, session_id=made, parent=source.session, process="", wants_title=False)
    return event.time, body


def _placed(bodies: list[tuple[int, Body]], new_id: Callable[[], str]) -> list[Event]:
    return [
        Event(Position(number), EventId(new_id()), time, body) for number, (time, body) in enumerate(bodies, start=1)
    ]


def _closing(events: list[Event], new_id: Callable[[], str]) -> list[Event]:
    state = fold(events)
    now = events[-1].time
    bodies: list[Body] = []
    if state.turn is not None:
        inputs = Inputs(new_id=new_id, now=now, bounds=Bounds())
        bodies += end_early(state, inputs, state.turn, "interrupted").events
    bodies += tasks_of_another(state)
    return [
        Event(Position(number), EventId(new_id()), now, body)
        for number, body in enumerate(bodies, start=len(events) + 1)
    ]


def _row(state: State, source: Key, of: Row) -> NewSession:
    return NewSession(
        host=of.host,  # Its working directory is that of the source, and so is where that lies.
        tools=state.tools or (),
        model=state.model,
        parent=source.session,
        metadata=of.metadata,
        created_at=state.started_at,
    )

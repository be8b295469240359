"""Forks: a new session that begins as a copy of another one, of its whole log or of a part."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import FileId, Key, SessionId
from holdfast.events.message import UserMessage
from holdfast.events.session import SessionStarted, TitleChanged
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.operations.new_log import MAX_COPY_BYTES, NewLog
from holdfast.server.operations.sessions import SessionVerbs
from holdfast.session.state import State
from holdfast.store.log_pages import NO_SNAPSHOT, pages
from holdfast.store.store import Committed, Loaded, NewSession, Row, Store, Unit


class ForkVerbs(SessionVerbs):
    async def fork(
        self,
        source: Key,
        *,
        before: str | None,
        title: str,
        bound: Callable[[State], Sequence[Body]] = lambda state: (),
    ) -> SessionId:
        """Copy the log before the event of that id, or all of it, into a new session. A turn that is unfinished in the
        source is ended in the copy: no request and no call of it is repeated. `bound` makes the records that leave the
        copy no more than its owner may have."""
        loaded = await self.store.load(source, fold_version=NO_SNAPSHOT)
        if loaded is None:
            raise self._not_found(source)
        fork_id = SessionId(self._new_id())
        log = NewLog(self._new_id)
        file_ids: set[FileId] = set()
        async with aclosing(_events_before(self.store, loaded, before)) as events:
            async for event in events:
                log.add(*_copied(event, fork_id, source))
                if isinstance(event.body, UserMessage):
                    file_ids.update(file.file_id for file in event.body.files)
                if log.size > MAX_COPY_BYTES:
                    message = f"A session of over {MAX_COPY_BYTES:,} bytes can't be forked. Export it instead."
                    raise Invalid("fork_too_large", message)
        log.add(loaded.row.updated_at, TitleChanged(title=title))
        log.close()
        for body in bound(log.state):
            log.add(log.last_time, body)
        unit = Unit(
            key=Key(source.owner, fork_id),
            fence=None,
            events=log.events(),
            creates=_row(log.state, source, loaded.row),
            title=title,
            status="idle",
        )
        outcome = await self.store.commit(unit)
        self.check_quota(outcome)
        assert isinstance(outcome, Committed), "a new id is free"
        # A crash before this leaves a copy that nobody was told of, whose files go with the source.
        if file_ids:
            await self.store.use_files(unit.key, sorted(file_ids))
        return fork_id


async def _events_before(store: Store, loaded: Loaded, event_id: str | None) -> AsyncGenerator[Event, None]:
    """The events before the event of that id; raises `NotFound`. The first event is always copied."""
    async for page in pages(store, loaded):
        for event in page:
            if event.id == event_id and event.position > 1:
                return
            yield event
            if event.id == event_id:
                return
    if event_id is not None:
        raise NotFound("event_not_found", f"Event {event_id} not found in session")


def _copied(event: Event, fork_id: SessionId, source: Key) -> tuple[int, Body]:
    body = event.body
    if isinstance(body, SessionStarted):
        body = msgspec.structs.replace(body, session_id=fork_id, parent=source.session, process="", wants_title=False)
    return event.time, body


def _row(state: State, source: Key, source_row: Row) -> NewSession:
    return NewSession(
        # The copy has the working directory of the source, and so the host of the directory.
        host=source_row.host if state.working_directory else None,
        tools=state.tools or (),
        model=state.model,
        made_from=source.session,
        metadata=source_row.metadata,
        created_at=state.started_at,
    )

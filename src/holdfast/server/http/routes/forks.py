"""Forks: a new session that begins as a copy of another one."""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.events.body import Body
from holdfast.events.ids import Position
from holdfast.events.session import ModelChanged
from holdfast.protocol.session import SessionView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.policy import for_copy
from holdfast.server.http.routes.rewinds import check_position
from holdfast.server.http.routes.sessions import created_session
from holdfast.session.role import asks_beyond
from holdfast.session.state import State

MAX_TITLE_CHARACTERS: Final = 200


class ForkQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """The last position that is copied; the whole log if left out."""


class ForkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARACTERS)] | None = None


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/fork",
    summary="A new session that begins as a copy of this one",
    query=ForkQuery,
    body=ForkBody,
    results={201: SessionView},
)
async def fork(call: HttpCall) -> Response:
    at = call.query(ForkQuery).at
    body = await call.body(ForkBody)
    row = await call.operations.session(call.key)
    before = None
    if at is not None and at != row.head:
        check_position(at, row.head)
        (following,) = await call.operations.store.events_after(call.key, Position(at), limit=1)
        before = following.id
    title = body.title or f"Fork of {row.title or 'a session'}"[:MAX_TITLE_CHARACTERS]
    async with call.service.copying:
        session_id = await call.operations.fork(call.key, before=before, title=title, bound=_bound(call))
    return await created_session(call.operations, call.identity.owner, session_id)


def _bound(call: HttpCall) -> Callable[[State], list[Body]]:
    """From the state of the copy to the records that leave it no more than the caller's role may have."""
    bounds, model = call.bounds, call.service.settings.model

    def records(state: State) -> list[Body]:
        if bounds is None:
            return []
        settings = for_copy(bounds, state)
        bodies: list[Body] = [] if settings is None else [settings]
        # The copy loses its own provider; the name that the provider gave its model is no model of this server.
        loses_provider = settings is not None and settings.provider is None
        if loses_provider or asks_beyond(state, bounds):
            bodies.append(ModelChanged(new_model=model, previous_model=state.model))
        return bodies

    return records

"""A session from another one, from an earlier place, out of this store and into it."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.events.body import Body
from holdfast.events.ids import Key, Position, SessionId
from holdfast.events.session import ModelChanged
from holdfast.server.errors import Invalid
from holdfast.server.forking import fork_session
from holdfast.server.http.endpoint import ChosenId, Endpoint, routes_of
from holdfast.server.http.errors import ApiError
from holdfast.server.http.service import Service
from holdfast.server.http.views import SessionView, session_view
from holdfast.server.http.wire import answer, read_body, read_query, reading
from holdfast.server.json_bounds import JsonBounds
from holdfast.server.transfer import Exported, ImportBounds, exporting, import_session
from holdfast.session.state import State

REWIND_SECONDS: Final = 10.0
"""How long a rewind waits for the running turn to end, and for whoever holds the session to do it."""

MAX_TITLE_CHARACTERS: Final = 200


EACH_EVENT: Final = JsonBounds(values=10_000, size=4_000_000)
"""Of an import: some two thousand tool calls in one answer, or a long result."""


class At(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """The last position that is copied; all of it if left out."""


class ForkGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARACTERS)] | None = None


class Rewind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    to: Annotated[int, Meta(ge=1, le=2**53)]
    """The last position that stays. A turn that runs is stopped first."""
    rewind_id: ChosenId | None = None
    """The same id again is the same rewind."""


def routes(service: Service) -> list[Route]:
    return routes_of(CopyRoutes(service).endpoints())


class CopyRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = service.operations
        self._copying = asyncio.Semaphore(1)
        """A log that is copied is in memory: one after another."""

    def endpoints(self) -> list[Endpoint]:
        one = "/v1/sessions/{session_id}"
        return [
            Endpoint(
                method="POST",
                path=f"{one}/fork",
                handler=self.fork,
                summary="A new session that begins as a copy of this one",
                query=At,
                body=ForkGiven,
                answers={201: SessionView},
            ),
            Endpoint(
                method="POST",
                path=f"{one}/rewind",
                handler=self.rewind,
                summary="Go on from an earlier place",
                body=Rewind,
                answers={200: SessionView},
            ),
            Endpoint(
                method="GET",
                path=f"{one}/export",
                handler=self.export,
                summary="The whole session as one document",
                answers={200: None},
            ),
            Endpoint(
                method="POST",
                path="/v1/sessions/import",
                handler=self.bring_in,
                summary="A new, idle session from such a document",
                body=Exported,
                answers={201: SessionView},
            ),
        ]

    async def fork(self, request: Request) -> Response:
        at = read_query(request, At).at
        key = self._service.key(request)
        given = await read_body(request, ForkGiven, limit=self._service.settings.max_body_bytes)
        row = await self._operations.session(key)
        before = None
        if at is not None and at != row.head:
            self._check_position(at, row.head)
            (following,) = await self._operations.store.events_after(key, Position(at), limit=1)
            before = following.id
        title = given.title or f"Fork of {row.title or 'a session'}"[:MAX_TITLE_CHARACTERS]
        async with self._copying:
            made = await fork_session(self._operations, key, before=before, title=title, bound=self._bound(request))
        return await self._made(key, made)

    def _bound(self, request: Request) -> Callable[[State], list[Body]]:
        identity = self._service.identity(request)
        policy, model = self._service.policy(identity), self._service.settings.model

        def records(state: State) -> list[Body]:
            bounds = policy.for_copy(identity.owner, state)
            found: list[Body] = [] if bounds is None else [bounds]
            # What a provider of its own called its model is no model here.
            is_none_here = bounds is not None and bounds.provider is None
            if is_none_here or policy.asks_beyond(state, default=model):
                found.append(ModelChanged(new_model=model, previous_model=state.model))
            return found

        return records

    async def rewind(self, request: Request) -> Response:
        key = self._service.key(request)
        wanted = await read_body(request, Rewind, limit=self._service.settings.max_body_bytes)
        row = await self._operations.session(key)
        await self._service.check_use(self._service.identity(request), key)
        self._check_position(wanted.to, row.head)
        if row.status != "idle":
            await self._operations.stop(key)
        try:
            async with asyncio.timeout(REWIND_SECONDS):
                await self._operations.rewind(key, Position(wanted.to), rewind_id=wanted.rewind_id)
        except TimeoutError:
            message = "The rewind was accepted, but nobody has carried it out yet. Ask again under the same rewind_id."
            raise ApiError(503, "not_rewound_yet", message, retry_after=1) from None
        return answer(session_view(await self._operations.session(key)))

    async def export(self, request: Request) -> Response:
        key = self._service.key(request)
        pieces = await exporting(self._operations.store, key)
        headers = {"content-disposition": 'attachment; filename="session.json"'}
        return StreamingResponse(pieces, 200, headers, media_type="application/json")

    async def bring_in(self, request: Request) -> Response:
        identity, settings = self._service.identity(request), self._service.settings
        owner, tools = identity.owner, self._service.policy(identity).chosen_tools(None, settings.tools)
        bounds = ImportBounds(size=settings.max_import_bytes, events=settings.max_import_events, each=EACH_EVENT)
        async with reading(request, limit=settings.max_import_bytes) as document, self._copying:
            made = await import_session(self._operations, owner, document, bounds=bounds, tools=tools)
        return await self._made(Key(owner, made), made)

    async def _made(self, key: Key, made: SessionId) -> Response:
        row = await self._operations.session(Key(key.owner, made))
        return answer(session_view(row), 201, {"location": f"/v1/sessions/{made}"})

    def _check_position(self, position: int, head: Position) -> None:
        if position > head:
            raise Invalid("position_invalid", f"The session ends at position {head}.")

"""All of one's sessions at a glance: how many are in which state, and those that need somebody first."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.service import Service
from holdfast.server.http.views import SessionView, session_view
from holdfast.server.http.wire import answer

LATELY_MS: Final = 86_400_000

MAX_ITEMS: Final = 50


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    needs_attention: int
    """They wait for an answer."""
    running: int
    queued: int
    finished_lately: int
    """Idle, with something done within the last day."""
    idle: int
    """The rest."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    counts: Counts
    items: tuple[SessionView, ...]
    """The latest, those first that need somebody."""


def routes(service: Service) -> list[Route]:
    return routes_of(OverviewRoutes(service).endpoints())


class OverviewRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/overview",
                handler=self.look,
                summary="One's sessions at a glance",
                answers={200: Overview},
            )
        ]

    async def look(self, request: Request) -> Response:
        owner = self._service.identity(request).owner
        since = self._service.clock.now_ms() - LATELY_MS
        found = await self._service.operations.store.glance(owner, since=since, limit=MAX_ITEMS)
        counts = Counts(
            needs_attention=found.waiting,
            running=found.running,
            queued=found.queued,
            finished_lately=found.idle_lately,
            idle=found.idle - found.idle_lately,
        )
        return answer(Overview(counts=counts, items=tuple(session_view(row) for row in found.first)))

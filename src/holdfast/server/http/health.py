"""Whether the process lives, whether it can do its work, and figures about it."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.errors import ApiError
from holdfast.server.http.service import Service
from holdfast.server.http.wire import answer
from holdfast.version import __version__

NO_SESSION = Key(Owner(""), SessionId(""))


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    version: str


def routes(service: Service) -> list[Route]:
    return routes_of(HealthRoutes(service).endpoints())


class HealthRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/healthz",
                handler=self.live,
                summary="Whether the process lives",
                answers={200: Health},
                is_public=True,
            ),
            Endpoint(
                method="GET",
                path="/readyz",
                handler=self.ready,
                summary="Whether the store answers and requests are welcome",
                answers={200: Health},
                is_public=True,
            ),
            Endpoint(
                method="GET",
                path="/metrics",
                handler=self.metrics,
                summary="Figures, for Prometheus; for admins",
                answers={200: None},
                media_type="text/plain",
            ),
        ]

    async def live(self, request: Request) -> Response:
        return answer(Health(status="ok", version=__version__))

    async def ready(self, request: Request) -> Response:
        if self._service.is_draining:
            raise ApiError(503, "shutting_down", "This server is about to end. Ask another one, or again in a moment.")
        await self._service.operations.store.row(NO_SESSION)
        return answer(Health(status="ready", version=__version__))

    async def metrics(self, request: Request) -> Response:
        if self._service.identity(request).role != "admin":
            raise ApiError(403, "admins_only", "Figures about the whole server are for its admins.")
        store, now = self._service.operations.store, self._service.clock.now_ms()
        oldest = await store.oldest_unclaimed()
        gauges = {
            "holdfast_readers": ("Streams that are open.", float(len(self._service.streams))),
            "holdfast_queue_age_seconds": (
                "How long the session has waited that has waited longest for somebody to run it.",
                max(0, now - oldest) / 1000 if oldest is not None else 0.0,
            ),
            **self._service.gauges(),
        }
        return Response(self._service.metrics.page(gauges), media_type="text/plain; version=0.0.4")

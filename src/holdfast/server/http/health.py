"""Whether the process lives, whether it can do its work, and figures about it."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.observability.exposition import CONTENT_TYPE
from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.errors import ApiError
from holdfast.server.http.service import Service
from holdfast.server.http.start_token import StartToken
from holdfast.server.http.wire import answer
from holdfast.store.store import Store
from holdfast.version import __version__

NONCE: Final = "x-holdfast-nonce"
PROOF: Final = "x-holdfast-proof"
"""A local server proves with it that it knows the token which a program of its user is about to show."""

NO_SESSION = Key(Owner(""), SessionId(""))


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    version: str
    redis: str | msgspec.UnsetType = msgspec.UNSET
    """How hints travel between processes, where there is something to say of it."""


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
        nonce, identities = request.headers.get(NONCE), self._service.identities
        headers = {PROOF: identities.proof(nonce)} if nonce and isinstance(identities, StartToken) else None
        return answer(Health(status="ok", version=__version__), headers=headers)

    async def ready(self, request: Request) -> Response:
        await check_store(self._service.operations.store, is_draining=self._service.is_draining)
        return answer(ready(self._service.redis_state()))

    async def metrics(self, request: Request) -> Response:
        if self._service.identity(request).role != "admin":
            raise ApiError(403, "admins_only", "Figures about the whole server are for its admins.")
        return Response(await self._service.figures(), media_type=CONTENT_TYPE)


def ready(redis_state: str | None) -> Health:
    """It is ready without Redis as well, but people should know."""
    return Health(status="ready", version=__version__, redis=msgspec.UNSET if redis_state is None else redis_state)


async def check_store(store: Store, *, is_draining: bool) -> None:
    """Raises why this process should not be asked for anything now."""
    if is_draining:
        raise ApiError(503, "shutting_down", "This server is about to end. Ask another one, or again in a moment.")
    await store.row(NO_SESSION)

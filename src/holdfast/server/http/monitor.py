"""`/healthz`, `/readyz` and `/metrics` on an address of their own, for a process without another HTTP surface.

Served without authentication: none of the three exposes user data, and the operator chooses the address. Requests of
web pages are refused.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.observability.exposition import CONTENT_TYPE
from holdfast.protocol.health import Health
from holdfast.server.http.errors import ApiError, api_error_of
from holdfast.server.http.routes.health import check_readiness, readiness
from holdfast.server.http.wire import json_response
from holdfast.store.store import Store
from holdfast.version import __version__


class Monitor:
    """An ASGI application for an `HttpListener`."""

    def __init__(
        self,
        metrics_page: Callable[[], Awaitable[str]],
        store: Store,
        *,
        is_draining: Callable[[], bool],
        redis_state: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._metrics_page = metrics_page
        self._store = store
        self._is_draining = is_draining
        self._redis_state = redis_state
        self._router: ASGIApp = Router(
            [
                Route("/healthz", self._show_liveness),
                Route("/readyz", self._show_readiness),
                Route("/metrics", self._show_metrics),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # Makes Starlette raise its errors (404, 405) instead of answering them.
        try:
            names = {name for name, _ in scope["headers"]}
            if names & {b"origin", b"sec-fetch-site"}:
                raise ApiError(403, "origin_not_allowed", "This address is not for web pages.")
            await self._router(scope, receive, send)
        except Exception as error:
            await api_error_of(error).response()(scope, receive, send)

    async def _show_liveness(self, request: Request) -> Response:
        return json_response(Health(status="ok", version=__version__))

    async def _show_readiness(self, request: Request) -> Response:
        await check_readiness(self._store, is_draining=self._is_draining())
        return json_response(readiness(self._redis_state()))

    async def _show_metrics(self, request: Request) -> Response:
        return Response(await self._metrics_page(), media_type=CONTENT_TYPE)

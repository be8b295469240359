"""`/healthz`, `/readyz` and `/metrics` alone, on an address of their own, for a process that serves nothing else.

Nobody is asked who they are: there is nothing of anybody's here, and the address is chosen by who runs the process. A
web page of another origin gets nothing all the same.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.observability.exposition import CONTENT_TYPE
from holdfast.server.http.errors import ApiError, answer_to
from holdfast.server.http.health import Health, check_store, ready
from holdfast.server.http.wire import answer
from holdfast.store.store import Store
from holdfast.version import __version__


class Monitor:
    """An application for a `Listener`."""

    def __init__(
        self,
        page: Callable[[], Awaitable[str]],
        store: Store,
        *,
        is_draining: Callable[[], bool],
        redis_state: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._page = page
        self._store = store
        self._is_draining = is_draining
        self._redis_state = redis_state
        self._router: ASGIApp = Router(
            [
                Route("/healthz", self._live),
                Route("/readyz", self._ready),
                Route("/metrics", self._figures),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # Then what Starlette has to say of an address comes here as an error.
        try:
            names = {name for name, _ in scope["headers"]}
            if names & {b"origin", b"sec-fetch-site"}:
                raise ApiError(403, "origin_not_allowed", "This address is not for web pages.")
            await self._router(scope, receive, send)
        except Exception as error:
            await answer_to(error).response()(scope, receive, send)

    async def _live(self, request: Request) -> Response:
        return answer(Health(status="ok", version=__version__))

    async def _ready(self, request: Request) -> Response:
        await check_store(self._store, is_draining=self._is_draining())
        return answer(ready(self._redis_state()))

    async def _figures(self, request: Request) -> Response:
        return Response(await self._page(), media_type=CONTENT_TYPE)

"""Endpoints: a handler with the declaration of its method, path, body and results.

The routes and the OpenAPI document are made of the same declarations.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http.call import HttpCall
from holdfast.server.http.scope import ROUTE
from holdfast.server.http.service import HttpService

Handler = Callable[[HttpCall], Awaitable[Response]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A handler and its declaration. Only `method`, `path` and `handler` decide what happens; the rest describes it."""

    method: str
    path: str
    handler: Handler
    summary: str
    query: type[Any] | None = None
    body: type[Any] | None = None
    takes_bytes: bool = False
    """The body is no JSON but taken as it is."""
    results: Mapping[int, Any]
    """The type of the result for each status that is no error; None: no body, or a body that is not JSON."""
    media_type: str = "application/json"
    """Of a result without a type that has a body."""
    is_stream: bool = False
    """A client that accepts `text/event-stream` gets a stream."""
    also: str | None = None
    """Another media type that a client may ask for: the same in another form."""
    is_public: bool = False
    """Served without authentication."""


def endpoint(
    method: str,
    path: str,
    *,
    summary: str,
    query: type[Any] | None = None,
    body: type[Any] | None = None,
    takes_bytes: bool = False,
    result: Any = None,
    results: Mapping[int, Any] | None = None,
    media_type: str = "application/json",
    is_stream: bool = False,
    also: str | None = None,
    is_public: bool = False,
) -> Callable[[Handler], Endpoint]:
    """Declare the function below as the handler of this method and path. `result` is the type of a plain 200; `results`
    maps each status to a type where there are others. Errors all have one shape, and need no declaration."""

    def declare(handler: Handler) -> Endpoint:
        return Endpoint(
            method=method,
            path=path,
            handler=handler,
            summary=summary,
            query=query,
            body=body,
            takes_bytes=takes_bytes,
            results={200: result} if results is None else results,
            media_type=media_type,
            is_stream=is_stream,
            also=also,
            is_public=is_public,
        )

    return declare


def endpoints_of(modules: Iterable[ModuleType]) -> list[Endpoint]:
    """Every endpoint that the modules define, in the order of their definition."""
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Endpoint) and value.handler.__module__ == module.__name__
    ]


class EndpointRoute(Route):
    """All methods of one path, so that the error for another method can name them."""

    def __init__(self, path: str, endpoints: Sequence[Endpoint], service: HttpService) -> None:
        self.endpoints = tuple(endpoints)
        handlers = {endpoint.method: endpoint.handler for endpoint in endpoints}

        async def handle(request: Request) -> Response:
            request.scope[ROUTE] = path
            return await handlers["GET" if request.method == "HEAD" else request.method](HttpCall(service, request))

        super().__init__(path, handle, methods=list(handlers))


def routes_of(endpoints: Sequence[Endpoint], service: HttpService) -> list[EndpointRoute]:
    paths: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, []).append(endpoint)
    return [EndpointRoute(path, methods, service) for path, methods in paths.items()]

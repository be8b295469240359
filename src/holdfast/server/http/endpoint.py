"""A method at an address: what it takes, what it answers, and who handles it. The schema is made of the same words."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.ids import CHOSEN_ID

ROUTE: Final = "holdfast.route"
"""Where a request's scope says which route it took, as a template without anybody's names in it."""

ChosenId = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 64, "pattern": f"^{CHOSEN_ID}$"})]
"""An id that the client chose. The schema says what it may be; the operation that takes it refuses it in words."""

Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`handler` is called with the request; the rest is for people and programs that read the schema."""

    method: str
    path: str
    handler: Handler
    summary: str
    query: type[Any] | None = None
    body: type[Any] | None = None
    answers: Mapping[int, Any] = msgspec.field(default_factory=lambda: {200: None})
    """A type for each status that is no error; None: no body, or none that is JSON."""
    media_type: str = "application/json"
    """Of an answer whose type is None and that has a body."""
    is_stream: bool = False
    """Whoever accepts `text/event-stream` is answered with a stream."""
    is_public: bool = False


class EndpointRoute(Route):
    """All methods at one address, so that any other is told which there are."""

    def __init__(self, path: str, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        handlers = {endpoint.method: endpoint.handler for endpoint in endpoints}

        async def handle(request: Request) -> Response:
            request.scope[ROUTE] = path
            return await handlers["GET" if request.method == "HEAD" else request.method](request)

        super().__init__(path, handle, methods=list(handlers))


def routes_of(endpoints: Sequence[Endpoint]) -> list[Route]:
    paths: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, []).append(endpoint)
    return [EndpointRoute(path, found) for path, found in paths.items()]

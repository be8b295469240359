"""One request that passed the access gate, with everything that a handler needs to answer it."""

from functools import cached_property
from typing import TypeVar

from starlette.requests import Request

from holdfast.events.ids import Key, SessionId
from holdfast.observability.spans import RequestSpan
from holdfast.server.http.identity import Identity
from holdfast.server.http.policy import Policy
from holdfast.server.http.scope import IDENTITY, REQUEST_SPAN
from holdfast.server.http.service import HttpService
from holdfast.server.http.wire import read_body, read_query
from holdfast.server.json_bounds import BODY, JsonBounds
from holdfast.server.operations import Operations

T = TypeVar("T")


class HttpCall:
    """A handler reads the call, runs one operation and returns a response; it neither catches errors nor writes to the
    store itself."""

    def __init__(self, service: HttpService, request: Request) -> None:
        self.service = service
        self.request = request

    @property
    def operations(self) -> Operations:
        return self.service.operations

    @property
    def identity(self) -> Identity:
        """The caller. The gate refuses requests without a known identity, except on public paths."""
        identity: Identity = self.request.scope[IDENTITY]
        return identity

    @property
    def policy(self) -> Policy:
        return self.service.policy(self.identity)

    @cached_property
    def key(self) -> Key:
        """The session that the path names, as a session of the caller. A session of another owner has another key, and
        is not found, like a session that never existed."""
        key = Key(self.identity.owner, SessionId(self.request.path_params["session_id"]))
        span: RequestSpan | None = self.request.scope.get(REQUEST_SPAN)
        if span is not None and self.request.method == "POST":
            self.service.observer.link_request(key, span.context)
        return key

    def path(self, name: str) -> str:
        """A parameter of the path."""
        parameter: str = self.request.path_params[name]
        return parameter

    def header(self, name: str) -> str:
        return self.request.headers.get(name, "")

    def query(self, kind: type[T]) -> T:
        return read_query(self.request, kind)

    async def body(self, kind: type[T], *, limit: int | None = None, bounds: JsonBounds = BODY) -> T:
        most = self.service.settings.max_body_bytes if limit is None else limit
        return await read_body(self.request, kind, limit=most, bounds=bounds)

    async def check_use(self) -> None:
        """Raise `ApiError` if the session has more than the caller's role may use: see `HttpService.check_use`."""
        await self.service.check_use(self.identity, self.key)

    async def check_change(self) -> None:
        """The same for a change that starts no work: the session's settings stay as they are."""
        await self.service.check_change(self.identity, self.key)

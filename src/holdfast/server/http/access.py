"""The access log: each request gets an id, a span, counts, and a log line when it ends.

Of the URL only the route's template is logged, never ids in the path or the query.
"""

import logging
import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.events.ids import random_id
from holdfast.observability.activity import ActivityContext, current_activity
from holdfast.observability.logs import FIELDS, Value
from holdfast.observability.observer import Observer
from holdfast.observability.spans import RequestSpan
from holdfast.server.http.identity import Identity
from holdfast.server.http.metrics import RequestCounts
from holdfast.server.http.scope import IDENTITY, REQUEST_SPAN, ROUTE
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

REQUEST_ID: Final = b"x-request-id"

QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Routes that machines poll every few seconds; logged at debug level."""

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")

_TRACE_HEADERS: Final = (b"traceparent", b"tracestate")


class AccessLog:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, *, clock: Clock, observer: Observer, counts: RequestCounts) -> None:
        self._app = app
        self._clock = clock
        self._observer = observer
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = _Request(scope, send, self._observer)
        current_activity.set(ActivityContext(request_id=request.id))
        started = self._clock.monotonic()
        self._counts.open += 1
        try:
            await self._app(scope, receive, request.send)
        finally:
            self._counts.open -= 1
            self._counts.ended(request.status)
            request.end(self._clock.monotonic() - started)


class _Request:
    """One request. The response carries its id, so that a bug report can name it."""

    def __init__(self, scope: Scope, send: Send, observer: Observer) -> None:
        headers = dict(scope["headers"])
        self.id = _request_id(headers.get(REQUEST_ID, b""))
        self.status = 0
        self._is_whole = False
        self._scope = scope
        self._send = send
        traced = {name.decode(): headers[name].decode("latin-1") for name in _TRACE_HEADERS if name in headers}
        self._span: RequestSpan | None = observer.request(scope["method"], traced)
        if self._span is not None:
            scope[REQUEST_SPAN] = self._span

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID, self.id.encode())]
            self._end_span()  # A stream may last for days.
        elif not message.get("more_body", False):
            self._is_whole = True
        await self._send(message)

    def end(self, seconds: float) -> None:
        self._end_span()
        method, route = self._scope["method"], self._route()
        level = logging.DEBUG if route in QUIET else logging.INFO
        if not log.isEnabledFor(level):
            return
        identity: Identity | None = self._scope.get(IDENTITY)
        fields: dict[str, Value] = {
            "method": method,
            "route": route,
            "status": self.status,
            "duration_ms": round(seconds * 1000, 1),
            "owner": identity.owner if identity is not None else "",
        }
        session = self._scope.get("path_params", {}).get("session_id")
        if session is not None:
            fields["session_id"] = session
        log.log(level, "request" if self._is_whole else "request, broken off", extra={FIELDS: fields})

    def _end_span(self) -> None:
        if self._span is not None:
            self._span.end(
                method=self._scope["method"], route=self._route(), status=self.status or 500, request_id=self.id
            )
            self._span = None

    def _route(self) -> str:
        return str(self._scope.get(ROUTE, ""))


def _request_id(header: bytes) -> str:
    """The client's own id, if it is safe to log; otherwise a new one."""
    text = header.decode("latin-1")
    return text if _SANE_ID.fullmatch(text) else random_id()

"""What is known of every request from outside: an id for it, a line in the log when it ends, a span, and counts.

Of its address only the route is written down, never what stood in it or behind it.
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
from holdfast.server.http.endpoint import ROUTE
from holdfast.server.http.identity import Identity
from holdfast.server.http.metrics import Accesses
from holdfast.server.http.service import IDENTITY, REQUEST_SPAN
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

REQUEST_ID: Final = b"x-request-id"

QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: their lines are for who looks for every detail."""

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")

_TRACE_HEADERS: Final = (b"traceparent", b"tracestate")


class Access:
    """The outermost application."""

    def __init__(self, behind: ASGIApp, *, clock: Clock, observer: Observer, accesses: Accesses) -> None:
        self._behind = behind
        self._clock = clock
        self._observer = observer
        self._accesses = accesses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._behind(scope, receive, send)
        request = _Request(scope, send, self._observer)
        current_activity.set(ActivityContext(request_id=request.id))
        started = self._clock.monotonic()
        self._accesses.open += 1
        try:
            await self._behind(scope, receive, request.send)
        finally:
            self._accesses.open -= 1
            self._accesses.ended(request.status)
            request.end(self._clock.monotonic() - started)


class _Request:
    """One request. Its id is told in the answer, so that who complains can name it."""

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
            self._end_span()  # A stream may go on for days.
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


def _request_id(given: bytes) -> str:
    """The client's own, if it is one that can be written down; else a new one."""
    text = given.decode("latin-1")
    return text if _SANE_ID.fullmatch(text) else random_id()

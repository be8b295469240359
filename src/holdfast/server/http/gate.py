"""The access gate: checks host, origin, head size and identity of every request, and turns errors into responses.

A web page of another origin can't drive this server: `Host` or `Origin` gives it away. A foreign name that was made to
resolve to this server (DNS rebinding) is refused by the check of `Host`.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.http.errors import ApiError, api_error_of
from holdfast.server.http.identity import Identities, not_signed_in
from holdfast.server.http.key_watch import KeyWatch
from holdfast.server.http.routes.page import ASSETS
from holdfast.server.http.scope import IDENTITY
from holdfast.server.http.streams import ABORT

log = logging.getLogger(__name__)

PUBLIC: Final = frozenset({"/", "/healthz", "/readyz", "/v1/openapi.json"})
"""Paths served without authentication, beside the files of the page; none exposes user data."""

MAX_HEAD_BYTES: Final = 32_768

SAFETY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_PREFLIGHT: Final[Mapping[str, str]] = {
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": "authorization, content-type, last-event-id",
    "access-control-max-age": "600",
}


class ServerNames(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts and origins that this server accepts."""

    hosts: frozenset[str]
    """Host names without a port. IP addresses need not be listed: DNS can't make one point elsewhere."""
    is_local: bool
    """The server listens on the loopback interface only, and accepts no other IP address as its host."""
    origins: frozenset[str] = frozenset()
    """Other origins whose web pages may use the server."""


class AccessGate:
    """The ASGI application around the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        names: ServerNames,
        identities: Identities,
        watch: KeyWatch,
        public: frozenset[str] = PUBLIC,
    ) -> None:
        self._app = app
        self._names = names
        self._identities = identities
        self._watch = watch
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        sender = _Sender(send)
        try:
            await self._let_through(scope, receive, sender)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await self._fail(error, scope, receive, sender)

    async def _let_through(self, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        headers = _headers(scope)
        _check_head(scope)
        self._check_host(headers)
        origin = self._check_origin(headers, scope)
        if origin is not None:
            sender.add((b"access-control-allow-origin", origin.encode()), (b"vary", b"origin"))
            if scope["method"] == "OPTIONS":
                await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, sender.send)
                return
        scope["app"] = self  # Makes Starlette raise its errors (404, 405) instead of answering them.
        if scope["path"] in self._public or scope["path"].startswith(ASSETS):
            return await self._app(scope, receive, sender.send)
        identity = await self._identities.identify(_bearer(headers))
        if identity is None:
            raise not_signed_in()
        scope[IDENTITY] = identity
        async with self._watch.over(identity):
            await self._app(scope, receive, sender.send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        name = _host_name(headers.get("host", ""))
        if name in self._names.hosts or (not self._names.is_local and _is_address(name)):
            return
        raise ApiError(
            403,
            "host_not_allowed",
            "This server does not answer to that host name. If it should, name it in HOLDFAST_ALLOWED_HOSTS.",
        )

    def _check_origin(self, headers: Mapping[str, str], scope: Scope) -> str | None:
        """The request's origin, if it is another one that is allowed; raises `ApiError` if it is not allowed."""
        origin = headers.get("origin")
        if origin is not None:
            if origin in self._names.origins:
                return origin
            if not _is_same(origin, headers.get("host", "")):
                raise _foreign()
        elif _is_from_elsewhere(headers) and (
            headers.get("sec-fetch-mode") != "navigate" or scope["path"].startswith("/v1/")
        ):
            raise _foreign()
        return None

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        refused = api_error_of(error)
        if refused.status >= 500 and not isinstance(error, ApiError):
            log.error("%s %s failed: %s", scope["method"], scope["path"], error, exc_info=refused.status == 500)
        if not sender.has_started:
            await refused.response()(scope, receive, sender.send)
            return
        log.info("The answer to %s %s is broken off: %s", scope["method"], scope["path"], refused.code)
        abort = scope.get("extensions", {}).get(ABORT)
        if abort is not None:
            abort()


class _Sender:
    """Adds the headers that every response has, and notes whether the response has started."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers: list[tuple[bytes, bytes]] = list(SAFETY_HEADERS)
        self.has_started = False

    def add(self, *headers: tuple[bytes, bytes]) -> None:
        self._headers += headers

    async def send(self, message: Message) -> None:
        if not self.has_started:
            self.has_started = True
            message["headers"] = [*message.get("headers", ()), *self._headers]
        await self._send(message)


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name; the last one of a repeated header."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _check_head(scope: Scope) -> None:
    names = [name for name, _ in scope["headers"]]
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEAD_BYTES:
        raise ApiError(431, "head_too_large", f"The head of a request has at most {MAX_HEAD_BYTES:,} bytes here.")
    if any(names.count(once) > 1 for once in (b"host", b"origin", b"authorization")):
        raise ApiError(400, "header_repeated", "Host, Origin and Authorization may each be given once.")


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _host_name(host: str) -> str:
    """The host in lower case, without its port and without the brackets of an IPv6 address."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether the origin is this server, by the name in `Host`, with or without TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site made the request. Browsers send no `Origin` when such a page fetches a picture or
    a script, but they send this header."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _foreign() -> ApiError:
    return ApiError(
        403,
        "origin_not_allowed",
        "Web pages of other origins may not use this server. If one should, name it in HOLDFAST_ALLOWED_ORIGINS.",
    )


LOOPBACK_NAMES: Final[Collection[str]] = ("localhost", "127.0.0.1", "::1")

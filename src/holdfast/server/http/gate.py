"""What every request passes before a route sees it: where it comes from, how large its head is, who asks. And what
becomes of whatever goes wrong behind it.

A web page of another origin can't drive this server: its name for us is in `Host`, its own in `Origin`, and neither is
ours. A name that was made to point here (DNS rebinding) is not one of ours either.
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

from holdfast.server.http.errors import ApiError, answer_to
from holdfast.server.http.identity import Identities
from holdfast.server.http.page import ASSETS
from holdfast.server.http.service import IDENTITY
from holdfast.server.http.streams import ABORT
from holdfast.server.http.watch import Watch, not_known

log = logging.getLogger(__name__)

PUBLIC: Final = frozenset({"/", "/healthz", "/readyz", "/v1/openapi.json"})
"""What anybody may see who can reach the server: nothing of anybody's. The files of the page are, too."""

MAX_HEAD_BYTES: Final = 32_768

SAFETY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_PREFLIGHT: Final[Mapping[str, str]] = {
    "access-control-allow-methods": "GET, POST, PATCH, DELETE",
    "access-control-allow-headers": "authorization, content-type, last-event-id",
    "access-control-max-age": "600",
}


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What this server is called."""

    hosts: frozenset[str]
    """Names without a port. Addresses need not be listed: nobody can make one point elsewhere."""
    is_local: bool
    """It listens to this machine only: then no other address is its own either."""
    origins: frozenset[str] = frozenset()
    """Web pages of other origins that may use it."""


class Gate:
    """The outermost application."""

    def __init__(self, behind: ASGIApp, *, names: Names, identities: Identities, watch: Watch) -> None:
        self._behind = behind
        self._names = names
        self._identities = identities
        self._watch = watch

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
        scope["app"] = self  # Then what Starlette has to say of an address comes here as an error.
        if scope["path"] in PUBLIC or scope["path"].startswith(ASSETS):
            return await self._behind(scope, receive, sender.send)
        identity = await self._identities.identify(_bearer(headers))
        if identity is None:
            raise not_known()
        scope[IDENTITY] = identity
        async with self._watch.over(identity):
            await self._behind(scope, receive, sender.send)

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
        """The other origin that is allowed to ask, if one does."""
        origin = headers.get("origin")
        if origin is not None:
            if origin in self._names.origins:
                return origin
            if not _same(origin, headers.get("host", "")):
                raise _foreign()
        elif _is_from_elsewhere(headers) and (
            headers.get("sec-fetch-mode") != "navigate" or scope["path"].startswith("/v1/")
        ):
            raise _foreign()
        return None

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        refused = answer_to(error)
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
    """Adds the headers that every answer has, and knows whether there is one yet."""

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
    """By name; of one that came twice the last."""
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
    """Without its port, in lower case, and without the brackets of an address."""
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


def _same(origin: str, host: str) -> bool:
    """Whether a page came from this very server, whatever it is called today, and over TLS or not."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """A page may have a picture or a script fetched from here without naming its origin. Then browsers say this."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _foreign() -> ApiError:
    return ApiError(
        403,
        "origin_not_allowed",
        "Web pages of other origins may not use this server. If one should, name it in HOLDFAST_ALLOWED_ORIGINS.",
    )


LOOPBACK_NAMES: Final[Collection[str]] = ("localhost", "127.0.0.1", "::1")

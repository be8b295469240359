"""Sends a report to a receiver over HTTP, once. The host is resolved once, and connected to by a checked address:
a name that has another address a moment later changes nothing. Redirects are not followed, no answer is read beyond its
headers, and the whole attempt is bounded in time."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from holdfast.store.webhooks import WebhookAnswer
from holdfast.webhooks.addresses import ReceiverRefused, ReceiverRules, address_of

ATTEMPT_SECONDS: Final = 10.0
"""The look-up of the name, the connection, the request and the headers of the answer, all together."""

MAX_LOOK_UPS: Final = 8
"""Look-ups of names at a time. One that takes too long goes on in its thread; more wait for it."""

TAKEN: Final = range(200, 300)


class HttpReceivers:
    """Every receiver that the rules allow."""

    def __init__(self, rules: ReceiverRules, *, attempt_seconds: float = ATTEMPT_SECONDS) -> None:
        self._rules = rules
        self._attempt_seconds = attempt_seconds
        # Threads of their own: a name server that does not answer must not hold up other work of this process.
        self._names = ThreadPoolExecutor(MAX_LOOK_UPS, thread_name_prefix="webhook-names")

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        """The outcome of one attempt. Raises nothing that a receiver can cause."""
        try:
            async with asyncio.timeout(self._attempt_seconds):
                return await self._post(URL(url), headers, body)
        except ReceiverRefused:
            return WebhookAnswer(fault="address_refused")
        except TimeoutError:
            return WebhookAnswer(fault="timeout")
        except socket.gaierror:
            return WebhookAnswer(fault="no_such_host")
        except (ssl.SSLError, aiohttp.ClientSSLError):
            return WebhookAnswer(fault="tls_failed")
        except (aiohttp.ClientError, OSError, ValueError):
            return WebhookAnswer(fault="unreachable")

    async def _post(self, url: URL, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        host = url.raw_host or ""
        self._rules.check(url.scheme, host)
        addresses = await self._addresses(host, url.port or 0)
        connector = aiohttp.TCPConnector(resolver=_Checked(addresses), use_dns_cache=False, force_close=True, limit=1)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            response = await http.post(url, data=body, headers=headers, allow_redirects=False)
            status = response.status
            response.close()
        return WebhookAnswer(status=status, fault=None if status in TAKEN else "status")

    async def _addresses(self, host: str, port: int) -> list[ResolveResult]:
        """The allowed addresses of a host. Raises `ReceiverRefused` if it has none of them."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._names, look_up)
        allowed: list[ResolveResult] = []
        for family, _, proto, _, address in found:
            with contextlib.suppress(ValueError):
                if self._rules.allows(host, address_of(str(address[0]))):
                    allowed.append(_resolved(host, str(address[0]), port, family, proto))
        if not allowed:
            raise ReceiverRefused("The host has no address that the server allows.")
        return allowed


def _resolved(host: str, address: str, port: int, family: int, proto: int) -> ResolveResult:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=proto, flags=flags)


class _Checked(AbstractResolver):
    """Returns the addresses that were checked, whatever the name is."""

    def __init__(self, addresses: Sequence[ResolveResult]) -> None:
        self._addresses = list(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        pass

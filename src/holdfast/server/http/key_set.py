"""The keys with which the issuer of JWTs signs: a JSON Web Key Set, fetched from a URL or read from a file.

The set is fetched beside the requests, every few minutes. A token that names an unknown key makes it be fetched again,
at a bounded rate: issuers rotate their keys. The last good set is kept while no other can be had. Without one no token
is accepted.
"""

import asyncio
import base64
import contextlib
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm

from holdfast.server.http.errors import ApiError
from holdfast.server.http.strict_json import strict_object
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 300.0
"""How often the set is fetched. A key that its issuer removed is trusted for so long."""

AGAIN_SECONDS: Final = 10.0
"""The shortest time between two fetches, however many tokens name unknown keys."""

FETCH_SECONDS: Final = 10.0

MAX_SET_BYTES: Final = 262_144
MAX_KEYS: Final = 100

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
"""Each wrong signature costs the work of one verification, which grows with the key."""

_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""What each kind of key may verify, by type and curve. A symmetric key verifies nothing here."""

_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")
"""The members of a public key. A private part that was published by mistake is not read."""

Fetch = Callable[[], Awaitable[bytes]]


class BadKeySet(Exception):
    """The set can't be had, or can't be understood. The message is for operators."""


class SigningKey(msgspec.Struct, frozen=True):
    """One key of the issuer, for one algorithm."""

    kid: str | None
    algorithm: str
    thumbprint: str
    verifier: jwt.PyJWK


class KeySet:
    """The issuer's keys as this process knows them. A context manager fetches them in the background."""

    def __init__(self, fetch: Fetch, clock: Clock, algorithms: tuple[str, ...]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._algorithms = algorithms
        self._keys: tuple[SigningKey, ...] | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._refreshing = asyncio.create_task(self._refresh(), name="holdfast-key-set")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._refreshing, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        """The keys that may have signed a token; several only if the issuer gave them the same id. Raises `ApiError` if
        there never was a set."""
        found = self._known(kid, algorithm)
        if found:
            return found
        await self._fetch_again()
        if self._keys is None:
            raise ApiError(
                503,
                "token_keys_unavailable",
                "The keys of the tokens' issuer can't be fetched, so no token can be checked. Try again.",
                retry_after=self._seconds_to_wait() or 1.0,
            )
        return self._known(kid, algorithm)

    def trusts(self, thumbprint: str) -> bool:
        """Whether the issuer still has this key, as far as this process knows."""
        return any(key.thumbprint == thumbprint for key in self._keys or ())

    async def fetch(self) -> tuple[SigningKey, ...]:
        """Fetch the set now. Raises `BadKeySet`, and keeps the set that was there before."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                text = await self._fetch()
        except TimeoutError:
            raise BadKeySet(f"it did not come within {FETCH_SECONDS:g} seconds") from None
        except (OSError, aiohttp.ClientError) as error:
            raise BadKeySet(f"it could not be read: {type(error).__name__}") from error
        self._keys = signing_keys(text, self._algorithms)
        return self._keys

    def _known(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        found = tuple(key for key in self._keys or () if key.algorithm == algorithm and kid in (None, key.kid))
        return found if kid is not None or len(found) == 1 else ()

    async def _fetch_again(self) -> None:
        """Fetch the set unless that was tried a moment ago. All who need it wait for one fetch."""
        if self._fetching is None or self._fetching.done():
            if self._seconds_to_wait() > 0:
                return
            self._tried_at = self._clock.monotonic()
            self._fetching = asyncio.create_task(self._fetch_or_log())
        await asyncio.shield(self._fetching)

    def _seconds_to_wait(self) -> float:
        if self._tried_at is None:
            return 0.0
        return max(0.0, math.ceil(self._tried_at + AGAIN_SECONDS - self._clock.monotonic()))

    async def _fetch_or_log(self) -> None:
        try:
            await self.fetch()
        except BadKeySet as error:
            kept = "No token is accepted." if self._keys is None else "The last good one stays in use."
            log.warning("The key set of HOLDFAST_JWT_JWKS is not usable: %s. %s", error, kept)
        except Exception:
            log.exception("The key set of HOLDFAST_JWT_JWKS could not be fetched")

    async def _refresh(self) -> None:
        while True:
            await self._fetch_again()
            await self._clock.sleep(AGAIN_SECONDS if self._keys is None else REFRESH_SECONDS)


def signing_keys(text: bytes, algorithms: tuple[str, ...]) -> tuple[SigningKey, ...]:
    """The usable keys of a set, which may be none: an issuer may withdraw all of them. Raises `BadKeySet`."""
    try:
        found = strict_object(text).get("keys")
    except ValueError as error:
        raise BadKeySet(f"it is not a JSON Web Key Set: {error}") from error
    if not isinstance(found, list) or len(found) > MAX_KEYS:
        raise BadKeySet(f"it is not a JSON Web Key Set: it has no list `keys` of at most {MAX_KEYS}")
    return tuple(key for each in found if isinstance(each, dict) for key in _of_jwk(each, algorithms))


def _of_jwk(data: dict[str, Any], algorithms: tuple[str, ...]) -> list[SigningKey]:
    """The key for each algorithm that it may verify. Keys for other purposes are left out."""
    kid, uses = data.get("kid"), data.get("key_ops")
    is_for_signing = data.get("use", "sig") == "sig" and (uses is None or (isinstance(uses, list) and "verify" in uses))
    if not is_for_signing or not isinstance(kid, str | None):
        return []
    possible = _ALGORITHMS.get((str(data.get("kty")), "" if data.get("kty") == "RSA" else str(data.get("crv"))), ())
    public = {name: data[name] for name in _PUBLIC if isinstance(data.get(name), str)}
    thumbprint = base64.urlsafe_b64encode(hashlib.sha256(msgspec.json.encode(public, order="sorted")).digest()).decode()
    made = []
    for algorithm in possible:
        if algorithm in algorithms and data.get("alg", algorithm) == algorithm:
            with contextlib.suppress(jwt.PyJWTError, ValueError, UnsupportedAlgorithm):  # It is no such key.
                verifier = jwt.PyJWK(public, algorithm)
                if public["kty"] != "RSA" or MIN_RSA_BITS <= verifier.key.key_size <= MAX_RSA_BITS:
                    made.append(SigningKey(kid, algorithm, thumbprint, verifier))
    return made


def fetch_from(source: str) -> Fetch:
    """How to get the set of that setting: over HTTP, or from a file."""
    if not source.startswith(("https://", "http://")):
        return lambda: asyncio.to_thread(_read, Path(source))

    async def get() -> bytes:
        # A redirect would let another address than the configured one choose the keys.
        async with aiohttp.ClientSession() as session, session.get(source, allow_redirects=False) as response:
            if response.status != 200:
                raise BadKeySet(f"the answer is {response.status}")
            text = b""
            async for piece in response.content.iter_chunked(65_536):
                text = _bounded(text + piece)
            return text

    return get


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file.read(MAX_SET_BYTES + 1))


def _bounded(text: bytes) -> bytes:
    if len(text) > MAX_SET_BYTES:
        raise BadKeySet(f"it has more than {MAX_SET_BYTES:,} bytes")
    return text

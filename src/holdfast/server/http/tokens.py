"""JWTs as bearer tokens: a token's claims name the owner and the role of a caller, and its issuer vouches for them.

PyJWT verifies the signature. The claims are checked here, by the clock that the rest of the server goes by. A token is
accepted only if it is meant for this server, in force, and signed with a key of the configured set by an asymmetric
algorithm; headers that name other keys (`jku`, `x5u`, `jwk`) are never read.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import jwt
import msgspec

from holdfast.events.ids import Owner
from holdfast.protocol.identity import Role
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity, unauthorised
from holdfast.server.http.key_set import KeySet, SigningKey
from holdfast.server.http.keys import MAX_NAME_CHARACTERS, KeyRing
from holdfast.server.http.strict_json import strict_object
from holdfast.store.clock import Clock

MAX_TOKEN_BYTES: Final = 16_384

MAX_KID_CHARACTERS: Final = 256

OWNER_PREFIX: Final = "jwt+"
"""Before the owners of tokens, unless they are shared with keys. With a colon, they would have no folders of their
own."""

MAX_SUBJECT_CHARACTERS: Final = MAX_NAME_CHARACTERS - len(OWNER_PREFIX)

_TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Other types are tokens for another purpose, such as a sign-out."""


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that are accepted, and what their claims mean."""

    issuer: str
    audience: tuple[str, ...]
    """One of these must be among the token's."""
    algorithms: tuple[str, ...]
    owner_claim: str = "sub"
    shares_owners: bool = False
    """A token's owner is also the owner of that name among the keys."""
    role_claim: str | None = None
    """None: every token has the role `user`."""
    admin_roles: tuple[str, ...] = ("admin",)
    user_roles: tuple[str, ...] = ()
    """If there are any, a token with neither such a role nor one of an admin is refused."""
    leeway_seconds: float = 30.0
    """How much the clocks of issuer and server may differ."""


class Tokens:
    """Identifies callers by JWTs."""

    def __init__(self, rules: TokenRules, keys: KeySet, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock
        self._signatures = jwt.PyJWS(algorithms=list(rules.algorithms))

    async def identify(self, bearer: str) -> Identity:
        """The identity that the token vouches for. Raises `ApiError` with the reason if it vouches for none."""
        header = _header(bearer)
        key = self._verified(bearer, await self._candidates(header))
        claims = _claims(bearer)
        expires_at = self._check_claims(claims)
        subject = self._subject(claims)
        owner = Owner(subject if self._rules.shares_owners else f"{OWNER_PREFIX}{subject}")
        return Identity(
            owner=owner,
            role=self._role(claims),
            name=owner,
            subject=subject,
            signed_by=key.thumbprint,
            expires_at=expires_at,
        )

    def is_valid(self, identity: Identity) -> bool:
        """Whether the token is still in force, and its key still its issuer's."""
        is_over = identity.expires_at is not None and self._clock.now_ms() >= identity.expires_at
        return not is_over and self._keys.trusts(identity.signed_by)

    # The signature

    async def _candidates(self, header: dict[str, Any]) -> Sequence[SigningKey]:
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._rules.algorithms:
            _refuse(f"is signed with an algorithm that is not accepted; accepted: {', '.join(self._rules.algorithms)}")
        if "crit" in header or "b64" in header or "cty" in header:
            _refuse("has a header that changes its meaning")
        kind = header.get("typ", "")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            _refuse("is of a type for another purpose")
        if kid is not None and (not isinstance(kid, str) or len(kid) > MAX_KID_CHARACTERS):
            _refuse("names its key by something that is no id")
        found = await self._keys.find(kid, algorithm)
        if not found:
            _refuse("is signed with a key that is not among its issuer's")
        return found

    def _verified(self, bearer: str, candidates: Sequence[SigningKey]) -> SigningKey:
        for key in candidates:
            try:
                self._signatures.decode_complete(bearer, key.verifier, algorithms=[key.algorithm])
            except (jwt.PyJWTError, ValueError):
                continue
            return key
        _refuse("has a wrong signature")

    # The claims

    def _check_claims(self, claims: dict[str, Any]) -> int:
        """Raise `ApiError` unless the token is meant for this server and in force. Returns when it ends, in
        milliseconds."""
        if claims.get("iss") != self._rules.issuer:
            _refuse("is from another issuer")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if not any(isinstance(each, str) and each in self._rules.audience for each in audiences):
            _refuse("is for another audience")
        now, leeway = self._clock.now_ms(), round(self._rules.leeway_seconds * 1000)
        ends = _time(claims, "exp")
        if ends is None:
            _refuse("has no end: it needs the claim exp")
        if now >= ends + leeway:
            raise unauthorised("token_expired", "The token has expired. Get a new one.")
        for claim in ("nbf", "iat"):
            begins = _time(claims, claim)
            if begins is not None and begins > now + leeway:
                _refuse("is not in force yet")
        return ends + leeway

    def _subject(self, claims: dict[str, Any]) -> str:
        subject = _claim(claims, self._rules.owner_claim)
        if not isinstance(subject, str) or not subject:
            _refuse(f"names no owner: it needs the claim {self._rules.owner_claim}")
        if subject.strip() != subject or not subject.isprintable() or len(subject) > MAX_SUBJECT_CHARACTERS:
            _refuse(
                f"names an owner that can't be one: an owner has 1 to {MAX_SUBJECT_CHARACTERS} printable characters"
            )
        return subject

    def _role(self, claims: dict[str, Any]) -> Role:
        """The role of the caller. An unknown one is worth as much as none: the least role or, if the roles of users
        are configured, a refusal."""
        if self._rules.role_claim is None:
            return "user"
        found = _claim(claims, self._rules.role_claim)
        roles = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        if any(role in self._rules.admin_roles for role in roles if isinstance(role, str)):
            return "admin"
        if self._rules.user_roles and not any(role in self._rules.user_roles for role in roles):
            raise ApiError(403, "token_role_unknown", "The token is valid, but has no role that may use this server.")
        return "user"


class KeysAndTokens:
    """Identifies callers by API keys and by JWTs, which no reader can confuse: a JWT has two dots, a key has none."""

    def __init__(self, keys: KeyRing, tokens: Tokens) -> None:
        self._keys = keys
        self._tokens = tokens

    async def identify(self, bearer: str) -> Identity | None:
        if bearer.count(".") == 2:
            return await self._tokens.identify(bearer)
        return await self._keys.identify(bearer)

    async def is_valid(self, identity: Identity) -> bool:
        return await self._keys.is_valid(identity) if identity.key_id else self._tokens.is_valid(identity)


def _header(bearer: str) -> dict[str, Any]:
    if len(bearer) > MAX_TOKEN_BYTES:
        _refuse(f"is longer than {MAX_TOKEN_BYTES:,} characters")
    return _object(bearer, 0)


def _claims(bearer: str) -> dict[str, Any]:
    """The claims of a token whose signature was verified."""
    return _object(bearer, 1)


def _object(bearer: str, part: int) -> dict[str, Any]:
    text = bearer.split(".")[part]
    try:
        return strict_object(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        _refuse("can't be read")


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name or, if there is none of that name, by its path: `realm_access.roles`."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _time(claims: dict[str, Any], name: str) -> int | None:
    """A time of the token, in milliseconds."""
    found = claims.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1e12:
        _refuse(f"has a time that is none: {name}")
    return int(found * 1000)


def _refuse(why: str) -> NoReturn:
    raise unauthorised("token_invalid", f"The token {why}.")

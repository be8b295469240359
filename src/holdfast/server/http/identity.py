"""The identity of a caller: the owner whose sessions the caller sees, and the role that bounds the caller's choices."""

from typing import Protocol

import msgspec

from holdfast.events.ids import Owner
from holdfast.protocol.identity import Role
from holdfast.server.http.errors import ApiError


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    owner: Owner
    role: Role
    name: str
    """The name under which answers and stops are recorded."""
    key_id: str = ""
    """The caller's API key; empty if the caller has none."""
    subject: str = ""
    """The owner as the issuer of the caller's JWT names it; empty if the caller has no JWT."""
    signed_by: str = ""
    """The thumbprint of the issuer's key that signed that token."""
    expires_at: int | None = None
    """When the token ends, in milliseconds since 1970."""

    @property
    def may_end(self) -> bool:
        """Whether the identity may become invalid while a request runs."""
        return bool(self.key_id or self.subject)

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


class Identities(Protocol):
    """How the server identifies callers: by its start token, by API keys, or by JWTs."""

    async def identify(self, bearer: str) -> Identity | None:
        """The identity that the bearer token belongs to; None: the token is unknown. Raises `ApiError` where more can
        be said."""
        ...

    async def is_valid(self, identity: Identity) -> bool:
        """Whether the identity is still valid."""
        ...


def not_signed_in() -> ApiError:
    return ApiError(
        401,
        "not_signed_in",
        "Show who asks, with the header `Authorization: Bearer …`: the token that `holdfast serve` printed, an API "
        "key, or a JWT of the issuer that this server trusts.",
        headers={"www-authenticate": "Bearer"},
    )


def unauthorised(code: str, message: str) -> ApiError:
    """A token was shown, and is not accepted."""
    description = message.encode("ascii", "replace").decode().translate({ord("\\"): None, ord('"'): None})
    challenge = f'Bearer error="invalid_token", error_description="{description}"'
    return ApiError(401, code, message, headers={"www-authenticate": challenge})


def token_ended() -> ApiError:
    """For a request whose token ended while it ran."""
    return unauthorised("token_expired", "The token has expired, or its key was withdrawn. Get a new one.")

"""The identity of a caller: the owner whose sessions the caller sees, and the role that bounds the caller's choices."""

from typing import Protocol

import msgspec

from holdfast.events.ids import Owner
from holdfast.protocol.identity import Role


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    owner: Owner
    role: Role
    name: str
    """The name under which answers and stops are recorded."""
    key_id: str = ""
    """The caller's API key; empty if the caller has none."""

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


class Identities(Protocol):
    """How the server identifies callers: by its start token, or by API keys."""

    async def identify(self, bearer: str) -> Identity | None:
        """The identity that the bearer token belongs to; None: the token is unknown."""
        ...

    async def is_valid(self, identity: Identity) -> bool:
        """Whether the identity is still valid."""
        ...

"""API keys as the store keeps them: the owner and role of each, and the digest that identifies it."""

from typing import Literal

import msgspec

from holdfast.events.ids import Owner

KeyRole = Literal["user", "admin"]


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of one API key."""

    key_id: str
    name: str
    owner: Owner
    role: KeyRole
    digest: bytes
    """The digest of the key's secret part. The secret itself is not stored."""
    created_at: int
    revoked_at: int | None = None

    def __repr__(self) -> str:
        return f"KeyRow({self.key_id!r}, {self.name!r})"
